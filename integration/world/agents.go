package world

import (
	"fmt"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/integration/history"
)

// agentPause lets an agent commit a few dozen intents a second: enough to meet
// every fault, and no benchmark.
const agentPause = 20 * time.Millisecond

// Agents sets one to work for each tool. Each enqueues one intent after the
// other, and repeats itself until it hears that the intent is committed. They
// end with the test, or when stop returns.
func (w *World) Agents(tools ...string) (stop func()) {
	w.t.Helper()
	done := make(chan struct{})
	var agents sync.WaitGroup
	for _, tool := range tools {
		agents.Go(func() { w.agent(tool, done) })
	}
	stop = sync.OnceFunc(func() {
		close(done)
		agents.Wait()
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *World) agent(tool string, done <-chan struct{}) {
	pause := time.NewTicker(agentPause)
	defer pause.Stop()
	run := w.NewRun()
	for {
		select {
		case <-done:
			return
		case <-pause.C:
		}
		if w.Step(run, 1, tool) == history.Committed {
			run = w.NewRun()
		}
	}
}

// NewRun is the id of an agent run that nobody else has.
func (w *World) NewRun() string { return fmt.Sprintf("run-%d", w.steps.Add(1)) }
