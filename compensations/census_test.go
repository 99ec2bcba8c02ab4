package compensations

import (
	"maps"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestSagasThatWaitAreCountedByState(t *testing.T) {
	t.Parallel()
	db, err := pgxpool.New(t.Context(), drainertest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.saga (agent_run_id, state)
		VALUES ('a', 'begun'), ('b', 'begun'), ('c', 'compensation_failed'), ('d', 'compensated')`); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	if err := newCensus(db, registry).take(t.Context()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		got[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
	}
	if want := (map[string]float64{"begun": 2, "compensation_failed": 1}); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
