// Package sql has the statements of other packages than the store that write
// outbox.attempt, queue, claim, saga or incident. They stand beside the store's own,
// so that one folder shows every statement that moves a row, a run or an incident, and
// a package that runs one need not import the engine.
package sql

import _ "embed"

// Of compensations: a pass takes sagas, stops their runs, and moves them.
var (
	//go:embed saga/take.sql
	SagaTake string
	//go:embed saga/halt.sql
	SagaHalt string
	//go:embed saga/plan.sql
	SagaPlan string
	//go:embed saga/move.sql
	SagaMove string
	//go:embed saga/release.sql
	SagaRelease string
)

// Of drainer/operator: what people decide.
var (
	//go:embed operator/settle.sql
	OperatorSettle string
	//go:embed operator/requeue.sql
	OperatorRequeue string
	//go:embed operator/forward.sql
	OperatorForward string
	//go:embed operator/stop_waiting.sql
	OperatorStopWaiting string
	//go:embed operator/retry_saga.sql
	OperatorRetrySaga string
	//go:embed operator/reopen_steps.sql
	OperatorReopenSteps string
	//go:embed operator/resolve_saga.sql
	OperatorResolveSaga string
	//go:embed operator/acknowledge.sql
	OperatorAcknowledge string
)

// Of compensations/pages: incidents that no single row opens.
var (
	//go:embed pages/collided.sql
	PagesCollided string
	//go:embed pages/unconfigured.sql
	PagesUnconfigured string
	//go:embed pages/refused.sql
	PagesRefused string
	//go:embed pages/unknown_operation.sql
	PagesUnknownOperation string
)
