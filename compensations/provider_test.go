package compensations_test

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/agentoutbox/drainer/dispatch"
)

// provider is an adapter that keeps every call. It answers as a test says, and
// with success where none says anything.
type provider struct {
	mu      sync.Mutex
	calls   []dispatch.Request
	answers map[string]dispatch.Result // by step and by tool
}

func (p *provider) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, request)
	for _, name := range []string{request.Tuple.StepID, request.Tuple.ToolName} {
		if answer, said := p.answers[name]; said {
			return answer
		}
	}
	id := fmt.Sprintf("eff_%d", len(p.calls))
	return dispatch.Result{Outcome: dispatch.Completed, ProviderRef: id, Response: []byte(`{"id": "` + id + `"}`)}
}

// answer is what a step, or else a tool, gets from now on.
func (p *provider) answer(name string, outcome dispatch.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[name] = dispatch.Result{Outcome: outcome, ErrorClass: "test_" + string(outcome)}
}

// called lists the calls of a tool by their keys, in order.
func (p *provider) called(tool string) (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range p.calls {
		if call.Tuple.ToolName == tool {
			keys = append(keys, call.IdempotencyKey)
		}
	}
	return keys
}

// wasCalled reports whether the step was sent, or asked about.
func (p *provider) wasCalled(step string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.calls, func(call dispatch.Request) bool { return call.Tuple.StepID == step })
}
