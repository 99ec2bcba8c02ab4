package saga_test

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/saga"
)

// visible is as much of a state as the tables show.
type visible struct {
	Saga  string
	Steps [saga.Steps]visibleStep
}

type visibleStep struct {
	Forward, Undo visibleRow
	Incident      bool
}

type visibleRow struct {
	Place       saga.Place
	Status      dispatch.Status
	Maybe, Asks bool // of what waits
}

func visibleOf(s saga.State) (v visible) {
	v.Saga = s.Saga.String()
	for i, step := range s.Steps {
		v.Steps[i] = visibleStep{rowOf(step.Row), rowOf(step.Undo), step.Incident}
	}
	return v
}

func rowOf(r saga.Row) visibleRow {
	switch r.Place {
	case saga.Absent, saga.Committing:
		return visibleRow{}
	case saga.Queued:
		return visibleRow{r.Place, r.Status.Is(), r.Maybe, r.Asks}
	}
	return visibleRow{Place: r.Place, Status: r.Status.Is()}
}

// readSQL shows the intents of a run. Places are those of the model.
const readSQL = `
	SELECT i.tool_name, coalesce(forward.tool_name, ''),
	       CASE WHEN q.intent_id IS NOT NULL THEN $2::int WHEN newest.attempt IS NOT NULL AND newest.next_attempt_at IS NULL THEN $4::int ELSE $3::int END,
	       coalesce(newest.status, 'pending'), coalesce(q.maybe_applied, false), coalesce(q.lookup, false),
	       EXISTS (SELECT FROM outbox.incident n WHERE n.intent_id = i.id AND n.kind = 'compensation_failed' AND n.resolved_at IS NULL)
	FROM outbox.intent i
	LEFT JOIN outbox.intent forward ON forward.id = i.compensates
	LEFT JOIN outbox.queue q ON q.intent_id = i.id
	LEFT JOIN LATERAL (SELECT * FROM outbox.attempt a WHERE a.intent_id = i.id ORDER BY attempt DESC LIMIT 1) newest ON true
	WHERE i.agent_run_id = $1`
