package faults_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/world"
)

func TestATerminatedWorkerEndsWhatIsInFlightAndLeaves(t *testing.T) {
	t.Parallel()
	terminatedAtWork.holds(t)
}

func TestAWorkerThatIsTerminatedTwiceEndsAtOnceAndOthersRecover(t *testing.T) {
	t.Parallel()
	terminatedTwice.holds(t)
}

var terminatedAtWork = scenario{number: 9, plan: dispatchtest.Always(dispatchtest.Slow), play: func(t *testing.T, w *world.World) int {
	w.Reconfigure(patient)
	w.Provider.SlowFor = 200 * time.Millisecond
	enqueueOfEach(w, 40)
	leaving := w.Start()
	w.AwaitEffects(20)
	inFlight := inProgress(w)
	leaving.Terminate()
	for what, sql := range map[string]string{
		"attempts were cut short":      `SELECT count(*) FROM outbox.attempt WHERE outcome NOT IN ('completed', 'released')`,
		"claims are left":              `SELECT count(*) FROM outbox.claim`,
		"workers are left":             `SELECT count(*) FROM outbox.worker`,
		"rows lost a try for nothing":  `SELECT count(*) FROM outbox.queue WHERE tries > 0 OR maybe_applied`,
		"rows are not due immediately": `SELECT count(*) FROM outbox.queue WHERE next_attempt_at > now()`,
	} {
		if found := w.Count(sql); found != 0 {
			t.Errorf("%d %s", found, what)
		}
	}
	w.Start()
	return inFlight
}}

// terminatedTwice does not wait for a dispatch that would never end.
var terminatedTwice = scenario{number: 10, play: func(t *testing.T, w *world.World) int {
	enqueueOfEach(w, 2)
	leaving := w.Start(arm("after_reply=hold"))
	leaving.WaitFor("failpoint after_reply hold")
	leaving.Signal(syscall.SIGTERM)
	leaving.WaitFor(`"msg":"shutting down"`)
	leaving.Signal(syscall.SIGTERM)
	await(t, "the worker ends", leaving.Ended)
	if leaving.ExitCode() != -1 {
		t.Errorf("the worker ended with %d, before the second signal could end it", leaving.ExitCode())
	}
	w.Start()
	return 1
}}
