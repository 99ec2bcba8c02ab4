package faults_test

import (
	"syscall"
	"testing"

	"github.com/agentoutbox/drainer/integration/world"
)

func TestAWorkerSuspendedPastItsLeaseIsFencedOut(t *testing.T) {
	t.Parallel()
	for name, suspended := range map[string]scenario{"with one reply": suspendedWithAReply, "with all kinds of rows": suspendedWithReplies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suspended.holds(t)
		})
	}
}

func TestAWorkerSuspendedBetweenGateAndSendDoublesNothing(t *testing.T) {
	t.Parallel()
	suspendedBeforeItSends.holds(t)
}

var (
	suspendedWithAReply = scenario{number: 7, play: func(_ *testing.T, w *world.World) int {
		w.Enqueue(world.Keyed, 1)
		return suspended(w, "after_reply=stop")
	}}
	suspendedWithReplies = scenario{number: 7, play: func(_ *testing.T, w *world.World) int {
		enqueueOfEach(w, 3)
		return suspended(w, "after_reply=stop@3")
	}}
	// No tool with a lookup: a freeze that outlasts its margin is not covered.
	suspendedBeforeItSends = scenario{number: 8, play: func(_ *testing.T, w *world.World) int {
		for _, tool := range []string{world.Keyed, world.Set, world.Once} {
			w.Enqueue(tool, 3)
		}
		return suspended(w, "before_send=stop@3")
	}}
)

// suspended has a worker come back when others have settled what it holds.
func suspended(w *world.World, points string) (rows int) {
	zombie := w.Start(arm(points))
	zombie.WaitFor("failpoint")
	w.Start()
	w.AwaitRest()
	rows = lost(w)
	zombie.Signal(syscall.SIGCONT)
	zombie.WaitFor("lease lost")
	zombie.WaitFor(`"msg":"joined"`)
	return rows
}
