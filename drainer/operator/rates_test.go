package operator_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestRatesTellWhatSettledFromWhatWasPutBack(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	console := o.console()
	before := counters(t, console)
	// Four intents: two attempts settle, one is put back.
	ids := o.enqueue("run", 4)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'completed', 'completed'), ($2, 1, 'w', 'rejected', 'failed')`, ids[0], ids[1])
	o.exec(`DELETE FROM outbox.queue WHERE intent_id = ANY ($1)`, ids[:3])
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at) VALUES ($1, 1, 'w', 'throttled', 'pending', now())`, ids[2])
	o.exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id) VALUES ('sim', now(), $1, 'run')`, ids[2])

	var enqueued, attempts, settled float64
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		o.exec(`SELECT pg_stat_clear_snapshot()`) // sessions report within a second of their next statement
		rates := counters(t, console).Since(before)
		enqueued, attempts, settled = rates.Enqueued, rates.Attempts, rates.Settled
		if enqueued > 0 && attempts > 0 && near(attempts/enqueued, 3.0/4) && near(settled/enqueued, 2.0/4) {
			return
		}
	}
	t.Errorf("enqueued %f/s, attempts %f/s, settled %f/s; want 4 : 3 : 2", enqueued, attempts, settled)
}

func near(a, b float64) bool { return a-b < 0.01 && b-a < 0.01 }

func counters(t *testing.T, console *operator.Console) operator.Counters {
	t.Helper()
	now, err := console.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now
}
