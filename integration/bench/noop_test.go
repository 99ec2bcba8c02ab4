package bench_test

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch"
)

// noopSettings is the provider's `noop` block.
type noopSettings struct {
	ThrottledPercent int  `yaml:"throttled_percent,omitempty"` // of the intents, on their first attempt
	Hangs            bool `yaml:"hangs,omitempty"`             // until the attempt's time is over
}

// noopKind registers a provider that costs nothing: what is left is the
// outbox's own cost.
func noopKind() dispatch.Kind {
	return dispatch.Kind{
		Name: "noop",
		New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
			adapter := &noopAdapter{}
			return adapter, spec.Settings.Decode(&adapter.settings)
		},
		Settings: noopSettings{},
		Tool:     struct{}{},
	}
}

type noopAdapter struct{ settings noopSettings }

func (n *noopAdapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	switch {
	case n.settings.Hangs:
		<-ctx.Done()
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "timeout"}
	case request.Attempt == 1 && n.throttles(request.IdempotencyKey):
		return dispatch.Result{Outcome: dispatch.Throttled, HTTPStatus: 429, ErrorClass: "http_429", Healthy: true}
	}
	return dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200, Response: json.RawMessage(`{"id":"eff_1"}`)}
}

func (n *noopAdapter) throttles(key string) bool {
	if n.settings.ThrottledPercent == 0 {
		return false
	}
	digest, err := strconv.ParseUint(key[len(key)-8:], 16, 32)
	return err == nil && int(digest%100) < n.settings.ThrottledPercent
}
