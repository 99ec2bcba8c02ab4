package compensations_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/drainertest"
)

// triggering runs triggers until the test ends.
func (w *world) triggering(said *drainertest.Log) *compensations.Triggers {
	w.t.Helper()
	runner, err := jobs.New(w.db, slog.New(slog.DiscardHandler), w.saga)
	if err != nil {
		w.t.Fatal(err)
	}
	triggers := compensations.NewTriggers(w.db, runner.Client(), slog.New(slog.NewTextHandler(said, nil)))
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- triggers.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	return triggers
}

func TestATriggerThatFailsIsMadeUpForByASweep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ fails, breaks, mends string }{
		{"trigger sagas", `ALTER TABLE outbox.river_job ADD CONSTRAINT full_up CHECK (false) NOT VALID`, `ALTER TABLE outbox.river_job DROP CONSTRAINT full_up`},
		{"look for sagas", `ALTER TABLE outbox.saga RENAME TO away`, `ALTER TABLE outbox.away RENAME TO saga`},
	} {
		t.Run(test.fails, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.rejected()
			w.exec(test.breaks)
			var said drainertest.Log
			w.triggering(&said)
			drainertest.Eventually(t, "it says what fails", func() bool {
				return strings.Contains(said.String(), `msg="cannot trigger sagas now; the next sweep will" error="`+test.fails)
			})
			w.exec(test.mends)
			drainertest.Eventually(t, "the saga is triggered", func() bool {
				return stored[int](w, `SELECT count(*) FROM outbox.river_job WHERE args = '{"agent_run_id": "run-1"}'`) > 0
			})
		})
	}
}

// Nobody works here. The second saga shows that another sweep has been.
func TestJobsOfASagaDoNotPileUpWhileNobodyWorksThemOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	jobsOf := func(run string) int {
		return stored[int](w, `SELECT count(*) FROM outbox.river_job WHERE args ->> 'agent_run_id' = $1`, run)
	}
	w.triggering(&drainertest.Log{})
	for _, run := range []string{"run-1", "run-2", "run-3"} {
		w.exec(`INSERT INTO outbox.saga (agent_run_id) VALUES ('` + run + `')`)
		drainertest.Eventually(t, "it is triggered", func() bool { return jobsOf(run) > 0 })
	}
	if waiting := jobsOf("run-1"); waiting != 1 {
		t.Errorf("%d jobs wait to take the first run further, want one", waiting)
	}
}

func TestAMoveThatCannotBeTriggeredIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var said drainertest.Log
	triggers := w.triggering(&said) // there is no saga that a sweep could fail to trigger
	w.exec(`ALTER TABLE outbox.river_job RENAME TO away`)
	triggers.Moved("run-1")
	drainertest.Eventually(t, "it says what fails", func() bool { return strings.Contains(said.String(), `error="trigger a saga: `) })
}

// The lanes say so right after a commit: they must not wait for River.
func TestAMoveWithoutRoomWaitsForNobody(t *testing.T) {
	t.Parallel()
	triggers := compensations.NewTriggers(nil, nil, nil)
	for range 10_000 {
		triggers.Moved("run-1")
	}
}
