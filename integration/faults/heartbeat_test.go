package faults_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
)

func TestAWorkerWhoseHeartbeatsFailStopsSendingAndStartsOver(t *testing.T) {
	t.Parallel()
	heartbeatsFail.holds(t)
}

func TestAWorkerWhoseHeartbeatHangsSendsNothingOnceItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	heartbeatHangs.holds(t)
}

// heartbeatsFail of a worker whose requests hang, so that it loses its lease
// while they are on their way.
var heartbeatsFail = scenario{number: 11, plan: dispatchtest.Script(dispatchtest.HangAfter), play: func(t *testing.T, w *world.World) int {
	enqueueOfEach(w, 3)
	mute := w.Start(arm("heartbeat=fail@*"))
	for range 3 {
		mute.WaitFor("lease lost")
		mute.WaitFor(`"msg":"joined"`)
	}
	w.Provider.Release()
	mute.Kill()
	w.Start()
	return failedBeats(mute)
}}

// heartbeatHangs in a worker that is slow, too: when it comes to send, others
// have been told by the provider that nothing happened. It dies of any reply.
var heartbeatHangs = scenario{number: 11, play: func(_ *testing.T, w *world.World) int {
	w.Enqueue(world.Asked, 3)
	slow := w.Start(arm("heartbeat=hang@2,claim_committed=hold,after_reply=kill"))
	slow.WaitFor("failpoint claim_committed hold")
	w.Start()
	w.AwaitRest()
	slow.Signal(syscall.SIGUSR1)
	slow.ReadTo("an outcome came after its lease was lost")
	return lost(w)
}}

func failedBeats(d *program.Daemon) int { return strings.Count(d.Log(), "failpoint heartbeat fail") }
