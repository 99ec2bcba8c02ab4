package protocol_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

// drain dispatches many intents, some at once, and wants every one completed
// with a ticket of its own.
func drain(t testing.TB, adapter dispatch.Adapter, count int) {
	t.Helper()
	const atOnce = 16
	steps := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	tickets := map[string]int{}
	for range atOnce {
		workers.Go(func() {
			for step := range steps {
				got := adapter.Dispatch(t.Context(), call(fmt.Sprint(step), "open_ticket", `{"title":"x"}`))
				if got.Outcome != dispatch.Completed || got.Replayed {
					t.Errorf("%d: %+v", step, got)
				}
				mu.Lock()
				tickets[got.ProviderRef]++
				mu.Unlock()
			}
		})
	}
	for step := range count {
		steps <- step
	}
	close(steps)
	workers.Wait()
	if len(tickets) != count {
		t.Errorf("%d tickets for %d intents", len(tickets), count)
	}
}

func TestTheExamplesAnswerManyAtOnce(t *testing.T) {
	t.Parallel()
	eachExample(t, func(t *testing.T, language, transport string) {
		drain(t, transports[transport](t, language, filepath.Join(t.TempDir(), "tickets")), 300)
	})
}

// With -benchtime 20000x each of them answers 20,000 dispatches, none of which
// it keeps in a file.
func BenchmarkExamples(b *testing.B) {
	for transport, connect := range transports {
		for language := range languages {
			b.Run(transport+"/"+language, func(b *testing.B) {
				adapter := connect(b, language, "")
				b.ResetTimer()
				drain(b, adapter, b.N)
			})
		}
	}
}
