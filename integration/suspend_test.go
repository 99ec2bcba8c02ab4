package integration_test

import (
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

const (
	joinedLine  = `"msg":"joined"`
	lateOutcome = "an outcome came after its lease was lost"
)

func TestADaemonSuspendedPastItsLeaseCannotSettle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 1)
	with := w.setup(dispatch.KeyIdempotent, shortLease)
	with.PauseAt = afterReply
	zombie := start(t, with)
	zombie.awaitPause()
	first, joined := w.worker(), zombie.logged(joinedLine)
	zombie.signal(syscall.SIGSTOP)

	start(t, w.setup(dispatch.KeyIdempotent, shortLease))
	w.awaitCount("completed", 1)

	zombie.resume()
	zombie.signal(syscall.SIGCONT)
	drainertest.Eventually(t, "the late outcome is refused", func() bool { return zombie.logged(lateOutcome) == 1 })
	drainertest.Eventually(t, "the zombie starts over", func() bool { return zombie.logged(joinedLine) > joined })
	if alive := stored[int](w, `SELECT count(*) FROM outbox.worker WHERE worker_id::text = $1`, first); alive != 0 {
		t.Error("the zombie kept its old identity")
	}
	w.assertHistory("lost", "completed")
	w.assertOneEffectEach()
}

func TestADaemonSuspendedBeforeItSendsDoublesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 1)
	with := w.setup(dispatch.NonIdempotent, shortLease)
	with.PauseAt = beforeSend
	zombie := start(t, with)
	zombie.awaitPause()
	zombie.signal(syscall.SIGSTOP)

	start(t, w.setup(dispatch.NonIdempotent, shortLease))
	w.awaitCount("unknown", 1)

	zombie.resume()
	zombie.signal(syscall.SIGCONT)
	drainertest.Eventually(t, "the late outcome is refused", func() bool { return zombie.logged(lateOutcome) == 1 })
	w.assertHistory("lost")
	drainertest.AssertInvariant(t, w.db)
	if got := w.provider.Ledger.Audit().TotalRequests(); got > 1 {
		t.Errorf("%d requests of a tool that must not be sent twice", got)
	}
}

// worker is the only worker's id.
func (w *world) worker() string {
	w.t.Helper()
	return stored[string](w, `SELECT worker_id::text FROM outbox.worker`)
}
