package integration_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/program"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// fate is what becomes of a transaction whose daemon was killed.
type fate string

const (
	undecided  fate = ""
	committed  fate = "committed"   // the database had all of it already
	rolledBack fate = "rolled back" // the connection broke first
)

// sagaMoment is where in a run's way back the daemon is killed: at a statement,
// before its commit, or while the provider has the newest step's undo.
type sagaMoment struct {
	name  string
	event string // of the trigger at which the statement stands
	when  string
	fate  fate
	fault dispatchtest.Fault
}

var sagaMoments = []sagaMoment{
	{name: "begin", event: "INSERT ON outbox.saga", fate: committed},
	{name: "begin, undone", event: "INSERT ON outbox.saga", fate: rolledBack},
	{name: "undo enqueued", event: "INSERT ON outbox.intent", when: "NEW.compensates IS NOT NULL"},
	{name: "undo claimed", event: "INSERT ON outbox.claim", when: "NEW.provider = 'refunds'", fate: committed},
	{name: "undo claimed, undone", event: "INSERT ON outbox.claim", when: "NEW.provider = 'refunds'", fate: rolledBack},
	{name: "undo sent", fault: dispatchtest.HangBefore},
	{name: "undo done", fault: dispatchtest.HangAfter},
	{name: "undo settled", event: "INSERT ON outbox.attempt", when: "NEW.status = 'compensated'", fate: committed},
	{name: "undo settled, undone", event: "INSERT ON outbox.attempt", when: "NEW.status = 'compensated'", fate: rolledBack},
	{name: "finish", event: "UPDATE ON outbox.saga", when: "NEW.state = 'compensated'"},
}

// The wait for the end is far shorter than River's for a job that it thinks runs: an hour.
func TestAKilledDaemonsSagaIsTakenOver(t *testing.T) {
	t.Parallel()
	for _, moment := range sagaMoments {
		t.Run(moment.name, func(t *testing.T) {
			t.Parallel()
			w := newSagaWorld(t, moment.fault)
			stands := w.standAt(moment)
			w.enqueueRun()
			victim := w.start()
			if moment.event == "" {
				w.awaitUndoRequests(1)
			} else {
				stands.await()
			}
			victim.Kill()
			killed := time.Now()
			w.provider.Release()
			stands.end(moment.fate)

			heir := w.start()
			w.awaitSagaEnd()
			t.Logf("the saga ended %s after the kill", time.Since(killed).Round(time.Millisecond))
			w.assertWentBack()
			heir.Terminate()
		})
	}
}

// River may run a job twice, here in two daemons.
func TestASagaWhoseJobsRunTwiceUndoesOnce(t *testing.T) {
	t.Parallel()
	w := newSagaWorld(t, dispatchtest.None)
	client, err := river.NewClient(riverpgxv5.New(w.db), &river.Config{Schema: "outbox"})
	if err != nil {
		t.Fatal(err)
	}
	daemons := []*program.Daemon{w.start(), w.start()}
	w.enqueueRun()
	for undone := range completedSteps {
		w.awaitUndoRequests(undone)
		for range 10 {
			if err := compensations.Trigger(t.Context(), client, sagaRun); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.awaitSagaEnd()
	fault.Injected(t, 58, stored[int](w.world, `SELECT count(*) - 1 FROM outbox.river_job WHERE kind = 'saga_advance'`))
	drainertest.Eventually(t, "every job is done", func() bool {
		return stored[int](w.world, `SELECT count(*) FROM outbox.river_job WHERE kind = 'saga_advance' AND state <> 'completed'`) == 0
	})
	w.assertWentBack()
	for _, daemon := range daemons {
		daemon.Terminate()
	}
}
