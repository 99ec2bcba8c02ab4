package integration_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
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

// drainOnce drains in this process until nothing is due.
func drainOnce(t testing.TB, url string, providers ...drainer.Provider) {
	t.Helper()
	store, err := postgres.Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	settings := drainer.Settings{Worker: patientLease, Once: true}
	daemon := drainer.New(store, providers, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := daemon.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
}
