package integration_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
)

// noop is a provider that costs nothing: what is left is the outbox's own cost.
type noop struct{}

func (noop) Dispatch(context.Context, dispatch.Request) dispatch.Result {
	return dispatch.Result{Outcome: dispatch.Completed, HTTPStatus: 200, Response: json.RawMessage(`{"id":"eff_1"}`)}
}

func BenchmarkDrain(b *testing.B) {
	const rows = 200_000
	for b.Loop() {
		b.StopTimer()
		url := drainertest.Database(b)
		db := connect(b, url)
		enqueue(b, db, "sim/act", 0, rows)
		b.StartTimer()
		drainOnce(b, url, drainer.Provider{
			Name: "sim", Adapter: noop{}, Concurrency: 64, Timeout: patience,
			Tools: map[string]dispatch.Policy{"act": quickPolicy(dispatch.KeyIdempotent, 3)},
		})
		b.StopTimer()
		drainertest.AssertInvariant(b, db)
		b.StartTimer()
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
}
