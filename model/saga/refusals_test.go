package saga_test

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/saga"
)

// assertRefusesTheRest tries what the model has no step for.
func (r *run) assertRefusesTheRest(s saga.State) {
	r.T.Helper()
	can := map[string]bool{}
	for _, step := range r.model.Explored().Steps(s) {
		can[said(step)] = true
	}
	for what, command := range map[string]func() error{
		"the operator retries the saga":  r.retry,
		"the operator resolves the saga": r.resolve,
	} {
		if !can[what] && command() == nil {
			r.T.Errorf("%s, although it cannot", what)
		}
	}
	if !can["the operator takes the run back"] && !can["the operator takes the cancelled run back"] && r.compensate() == nil {
		r.T.Error("the operator takes the run back, although it has gone back")
	}
	if s.Saga == saga.Open {
		return
	}
	if r.cancel() == nil {
		r.T.Error("the operator cancels a run that is closed")
	}
	r.assertTakesNoStep()
	for _, step := range r.steps {
		if step.forward.id == 0 || step.agent != nil {
			continue
		}
		if allowed, _ := r.Allows(operator.Retry{MayDuplicate: true}, step.forward.id); allowed {
			r.T.Error("a step of a closed run can be retried")
		}
	}
}

func (r *run) assertTakesNoStep() {
	r.T.Helper()
	agent, err := r.DB.Begin(r.T.Context())
	if err != nil {
		r.T.Fatal(err)
	}
	defer agent.Rollback(context.WithoutCancel(r.T.Context()))
	_, err = r.enqueue(agent, "another")
	if refusal := new(pgconn.PgError); !errors.As(err, &refusal) || refusal.Code != "OB002" {
		r.T.Errorf("a closed run takes a further step: %v", err)
	}
}
