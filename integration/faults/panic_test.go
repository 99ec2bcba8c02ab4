package faults_test

import (
	"testing"

	"github.com/agentoutbox/drainer/integration/world"
)

func TestAnAdapterThatPanicsLeavesDoubtAndALivingDaemon(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{world.Keyed, world.Set, world.Once, world.Asked, world.Order} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			panickedAfterSending(tool).holds(t)
		})
	}
}

// panickedAfterSending panics in place of the second reply, and the same daemon
// goes on.
func panickedAfterSending(tool string) scenario {
	return scenario{number: 15, play: func(_ *testing.T, w *world.World) int {
		w.Enqueue(tool, 3)
		w.Start(arm("after_reply=panic@2"))
		w.AwaitRest()
		return w.Count(`SELECT count(*) FROM outbox.attempt WHERE error = 'panic'`)
	}}
}
