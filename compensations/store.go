package compensations

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/postgres/sql"
	"github.com/agentoutbox/drainer/internal/failpoint"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

//go:embed next.sql
var nextSQL string

// passing begins a transaction of a pass. Its settings make the planner use indexes independently of statistics: if
// these were gathered before there were sagas, a join would compare each saga with each other. Each connection
// plans a statement only once, which makes a rollback 4 % faster.
var passing = pgx.TxOptions{BeginQuery: pgpool.Transaction.BeginQuery +
	`; SELECT pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('enable_memoize', 'off', true),
	pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true)`}

// query returns the rows of one statement, which runs in a transaction of its own.
func query[T any](ctx context.Context, s *Saga, statement string, scan pgx.RowToFunc[T], args ...any) (all []T, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, passing, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statement, args...) // CollectRows returns the error too
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	return all, err
}

// taken is a saga that only this process moves, for the length of a lease.
type taken struct {
	run     string
	version string // of the saga's row; each write changes it
	pass    int    // number of this pass, counted since the last pass that ended; 0: the saga has stalled
	planned bool
	steps   int     // how many the run has, up to 1000; 0 if planned
	plan    *string // the text of an array, if no move has written the plan down yet
	intent  int64   // the intent of the incident, if the saga has stalled
}

// take records in a commit that a pass of each of the returned sagas begins.
func (s *Saga) take(ctx context.Context, limit int, runs []string, again bool) ([]taken, error) {
	all, err := query(ctx, s, sql.SagaTake, func(row pgx.CollectableRow) (t taken, err error) {
		err = row.Scan(&t.run, &t.version, &t.pass, &t.planned, &t.steps, &t.intent)
		return t, err
	}, limit, lease.Seconds(), runs, again)
	if err != nil {
		return nil, fmt.Errorf("take sagas: %w", err)
	}
	return all, nil
}

// plan cancels the rows of the runs that wait in the queue, and finds the steps to undo. It returns each run's plan
// as the text of an array, or nil if the saga has to wait. If a saga would have to wait but has changed since it was
// taken, its run is missing from the result.
//
// To hold a run's intents means to wait for transactions of a prune, an operator or late evidence that began before
// they could see the saga. Later ones see it. If an intent's xmax is 0, no transaction has locked it yet: there is
// none to wait for, and a lock would write its page.
func (s *Saga) plan(ctx context.Context, sagas []taken, withoutUndo []string) (plans map[string]*string, err error) {
	runs, versions := columnsOf(sagas)
	plans = map[string]*string{}
	err = pgx.BeginTxFunc(ctx, s.pool, passing, func(tx pgx.Tx) error {
		hold := `SELECT count(*) FROM outbox.hold(ARRAY(SELECT id FROM outbox.intent WHERE agent_run_id = ANY ($1::text[]) AND xmax <> '0'::xid))`
		if _, err := tx.Exec(ctx, hold, runs); err != nil {
			return fmt.Errorf("hold the steps: %w", err)
		}
		if _, err := tx.Exec(ctx, sql.SagaHalt, runs); err != nil {
			return fmt.Errorf("stop what waits: %w", err)
		}
		rows, _ := tx.Query(ctx, sql.SagaPlan, runs, versions, withoutUndo, portion)
		var run string
		var plan *string
		_, err := pgx.ForEachRow(rows, []any{&run, &plan}, func() error {
			plans[run] = plan
			return nil
		})
		if err != nil {
			return fmt.Errorf("plan the undos: %w", err)
		}
		return nil
	})
	return plans, err
}

// place is a place in a saga's plan, with the step there.
type place struct {
	run, version string
	at, planned  int
	plan         *string // the text of an array, if the plan is not written down yet
	step         Step    // its intent is 0 if there is no step at this place
	forgotten    bool    // pruning has removed a completed step of the run
	isLast       bool    // no step follows in the plan
	isRead       bool    // step has the payload and the response of which the undo's payload is made
	now          float64 // seconds since 1970, by the database's clock
	following    []place // the next places, on which a pass may decide in advance
}

// next reads the next steps of each plan, up to maxBytes of payloads and responses.
func (s *Saga) next(ctx context.Context, sagas []taken, tools *tools) ([]place, error) {
	runs, versions := columnsOf(sagas)
	plans, unwritten := make([]*string, len(sagas)), map[string]*string{}
	for i, t := range sagas {
		plans[i], unwritten[t.run] = t.plan, t.plan
	}
	var places []place
	_, err := query(ctx, s, nextSQL, func(row pgx.CollectableRow) (_ struct{}, err error) {
		var p place
		var age float64
		var follows bool
		var key dispatch.Qualifiers
		var payload, response []byte // a *json.RawMessage could not tell JSON's null from SQL's
		err = row.Scan(&p.run, &p.version, &p.at, &p.planned, &p.step.IntentID, &p.step.Tuple.StepID, &p.step.Tuple.ToolName, &p.step.Tuple.BusinessScope,
			&payload, &response, &p.step.ProviderRef, &p.step.ServedBy, &age, &p.step.Undo, &p.step.UndoEnded, &key.Namespace, &key.Generation, &p.forgotten,
			&follows, &p.isLast, &p.isRead, &p.now)
		p.step.Tuple.AgentRunID, p.plan = p.run, unwritten[p.run]
		p.step.Key = p.step.Tuple.QualifiedKey(key)
		p.step.Age = time.Duration(age * float64(time.Second))
		p.step.Payload, p.step.Response = payload, response
		if !follows {
			places = append(places, p)
		} else if first := &places[len(places)-1]; first.run == p.run {
			first.following = append(first.following, p)
		}
		return struct{}{}, err
	}, runs, versions, maxBytes, maxReady/4, plans, tools.ofPayload, tools.ofResponse)
	if err != nil {
		return nil, fmt.Errorf("read the next steps: %w", err)
	}
	return places, nil
}

// move is the change of one saga. move.sql takes it as one element of its arrays.
type move struct {
	place
	decided Decision
	state   string
	replan  bool
	delay   *float64 // seconds until the saga is due again; nil: until a commit marks it
	ready   *string  // JSON: the decisions in advance on the places that follow an undo
}

// move writes the moves down in one commit. It returns the runs that it moved, which are those that had not changed.
func (s *Saga) move(ctx context.Context, moves []move) (moved map[string]bool, err error) {
	n := len(moves)
	runs, versions, states, places := make([]string, n), make([]string, n), make([]string, n), make([]*int, n)
	delays, steps, tools, payloads := make([]*float64, n), make([]*int64, n), make([]*string, n), make([]*string, n)
	attemptStatuses, why, incidents, ready, undoSteps, plans := make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n), make([]*string, n)
	for i := range moves {
		m := &moves[i]
		runs[i], versions[i], states[i], delays[i] = m.run, m.version, m.state, m.delay
		ready[i], plans[i] = m.ready, m.plan
		if !m.replan {
			places[i] = &m.at
		}
		if m.decided.Step.IntentID != 0 {
			steps[i] = &m.decided.Step.IntentID
		}
		switch m.decided.Action {
		case Undo:
			step := m.decided.Step.undoStep()
			tools[i], undoSteps[i] = &m.decided.undo, &step
			if m.decided.payload != nil {
				payload := string(m.decided.payload)
				payloads[i] = &payload
			}
		case Mark:
			status := "compensated"
			attemptStatuses[i] = &status
		case Fail:
			status, reason, incident := "compensation_failed", string(m.decided.why), m.decided.why.incident()
			if why[i], incidents[i] = &reason, &incident; steps[i] != nil {
				attemptStatuses[i] = &status
			}
		}
	}
	err = pgx.BeginTxFunc(ctx, s.pool, passing, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql.SagaMove, runs, versions, states, places, delays, steps, tools, payloads, attemptStatuses, why, incidents, ready, undoSteps, plans)
		done, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		moved = map[string]bool{}
		for _, run := range done {
			moved[run] = true
		}
		failpoint.UndoWritten.Hit()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("move sagas: %w", err)
	}
	return moved, nil
}

// release makes sagas due again that this pass did not move.
func (s *Saga) release(ctx context.Context, sagas []taken) error {
	runs, passes := make([]string, len(sagas)), make([]int, len(sagas))
	for i, t := range sagas {
		runs[i], passes[i] = t.run, t.pass
	}
	if _, err := s.pool.Exec(ctx, sql.SagaRelease, runs, passes); err != nil {
		return fmt.Errorf("release sagas: %w", err)
	}
	return nil
}

func columnsOf(sagas []taken) (runs, versions []string) {
	for _, t := range sagas {
		runs, versions = append(runs, t.run), append(versions, t.version)
	}
	return runs, versions
}
