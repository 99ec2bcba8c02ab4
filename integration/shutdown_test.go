package integration_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

func TestAShutdownFinishesWhatIsInFlightAndGivesBackTheRest(t *testing.T) {
	t.Parallel()
	const intents, concurrency = 200, 8
	w := newWorld(t, hangAfterFirst(intents/2))
	w.enqueue("sim/act", 0, intents)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.Providers[0].Concurrency = concurrency
	leaving := start(t, with)
	drainertest.Eventually(t, "more rows are claimed than are in flight", func() bool {
		return w.hanging() == concurrency && w.count("in_progress") > concurrency
	})
	fault.Injected(t, 9, w.count("in_progress"))
	leaving.signal(syscall.SIGTERM)
	drainertest.Eventually(t, "what was not sent is back in the queue", func() bool {
		return w.count("in_progress") == concurrency
	})
	drainertest.AssertInvariant(t, w.db)
	w.provider.Release()
	if code := leaving.exitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.assertNoClaims()
	if workers := stored[int](w, `SELECT count(*) FROM outbox.worker`); workers != 0 {
		t.Error("the worker did not leave")
	}
	w.assertOneEffectEach()
	if done, left := w.count("completed"), w.count("pending"); done+left != intents || left == 0 {
		t.Errorf("%d completed and %d pending, want %d together", done, left, intents)
	}
	if counted := stored[int](w, `SELECT count(*) FROM outbox.queue WHERE tries > 0 OR maybe_applied`); counted != 0 {
		t.Errorf("giving back cost %d rows a try", counted)
	}
}

func TestADispatchThatOutlastsTheShutdownIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dispatchtest.Script(dispatchtest.HangAfter))
	w.enqueue("sim/act", 0, 1)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.Worker.ShutdownTimeout = 300 * time.Millisecond
	leaving := start(t, with)
	w.awaitEffects(1)
	if code := leaving.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.assertHistory("ambiguous")
	w.assertNoClaims()
	if !stored[bool](w, `SELECT maybe_applied FROM outbox.queue`) {
		t.Error("the queue does not know that the effect may have happened")
	}
	w.provider.Release()
	start(t, with)
	w.awaitCount("completed", 1)
	w.assertOneEffectEach()
}

// hangAfterFirst serves that many requests and hangs all the others.
func hangAfterFirst(requests int64) dispatchtest.Plan {
	var seen atomic.Int64
	return func(string, int) dispatchtest.Fault {
		if seen.Add(1) > requests {
			return dispatchtest.HangAfter
		}
		return dispatchtest.None
	}
}

func (w *world) hanging() int {
	return w.provider.Ledger.Audit().Faults[dispatchtest.HangAfter]
}
