package integration_test

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/drainer/census"
	"github.com/agentoutbox/drainer/drainertest"
)

// What a sample of the whole outbox costs with five million settled intents and
// a hundred thousand pending ones: the time that the database computes, and how
// long it takes, which also counts the wait for a processor.
func BenchmarkCensus(b *testing.B) {
	url := drainertest.Database(b)
	fillOutbox(b, url)
	pool, spent := meteredPool(b, url)
	providers := []census.Provider{
		{Name: "sim", RetryWindows: map[string]time.Duration{"sim/act": 12 * time.Hour}},
		{Name: "other", RetryWindows: map[string]time.Duration{"other/act": 12 * time.Hour}},
	}
	const samples = 10
	var computed, took []float64
	for b.Loop() {
		for range samples {
			*spent = 0
			took = append(took, sampleOnce(b, pool, providers)*1000)
			computed = append(computed, *spent*1000)
		}
	}
	b.Logf("in ms, the first one with an empty cache: computed %.1f, took %.1f", computed, took)
	slices.Sort(computed)
	slices.Sort(took)
	median, worst := computed[len(computed)/2], computed[len(computed)-1]
	b.ReportMetric(median, "db-ms/sample")
	b.ReportMetric(worst, "db-ms/worst")
	b.ReportMetric(took[len(took)/2], "ms/sample")
	if median > 50 {
		b.Errorf("a sample takes %.0f ms of the database's time, want under 50", median)
	}
}

// meteredPool has one connection, over which the server tells what each
// statement computed for. The caller reads spent while nothing runs.
func meteredPool(b *testing.B, url string) (pool *pgxpool.Pool, spent *float64) {
	b.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	spent = new(float64)
	usage := regexp.MustCompile(`([\d.]+) s user, ([\d.]+) s system, [\d.]+ s elapsed`)
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["log_statement_stats"] = "on"
	config.ConnConfig.RuntimeParams["client_min_messages"] = "log"
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		for _, used := range usage.FindStringSubmatch(notice.Detail)[1:] {
			seconds, _ := strconv.ParseFloat(used, 64)
			*spent += seconds
		}
	}
	if pool, err = pgxpool.NewWithConfig(b.Context(), config); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool, spent
}

// sampleOnce is a process that leads for one sample, and returns the seconds
// that this took.
func sampleOnce(b *testing.B, pool *pgxpool.Pool, providers []census.Provider) (took float64) {
	b.Helper()
	registry := prometheus.NewRegistry()
	counting := census.New(pool, providers, slog.New(slog.DiscardHandler), registry)
	gathered(b, registry, "drainer_census_duration_seconds") // from now on it counts duplicates, too
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- counting.Run(ctx) }()
	drainertest.Eventually(b, "a sample", func() bool {
		took = gathered(b, registry, "drainer_census_duration_seconds")
		return took > 0
	})
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return took
}

func gathered(b *testing.B, registry *prometheus.Registry, name string) float64 {
	b.Helper()
	families, err := registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}

// fillOutbox writes the tables directly, as years of work would leave them.
func fillOutbox(b *testing.B, url string) {
	b.Helper()
	db := drainertest.Connect(b, url)
	for _, sql := range []string{
		`SET session_replication_role = replica`, // no trigger queues what is settled already
		`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
			SELECT 'run-' || n / 10, 'step-' || n % 10, 'sim/act', 'scope-' || n, '{"amount": 1200, "currency": "eur"}', now() - interval '30 days'
			FROM generate_series(1, 5000000) n`,
		`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, http_status, response)
			SELECT n, 1, 'worker', now(), 'completed', 'completed', 200, '{"id": "eff_1"}' FROM generate_series(1, 5000000) n`,
		`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'late-' || n, 'step', CASE n % 2 WHEN 0 THEN 'sim/act' ELSE 'other/act' END, 'scope', '{}' FROM generate_series(1, 100000) n`,
		`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, first_attempt_at, maybe_applied)
			SELECT provider, now() + (id % 200 - 100) * interval '1 second', id, agent_run_id, now() - interval '10 hours', id % 10 = 0
			FROM outbox.intent WHERE agent_run_id LIKE 'late-%'`,
		`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at)
			SELECT 'outcome_unknown', n, 'run', now() - interval '1 hour' FROM generate_series(1, 50000) n`,
		`INSERT INTO outbox.page (incident_id, generation, channel, told) SELECT id, 1, 'pager', 'open' FROM outbox.incident`,
		`VACUUM ANALYZE`,
		// a hundred a second, until some minutes after now
		`INSERT INTO outbox.duplicate (intent_id, seen_at) SELECT n, now() - (200000 - n) * interval '10 milliseconds' FROM generate_series(1, 260000) n`,
		`SELECT brin_summarize_new_values('outbox.duplicate_seen_at')`, // which autovacuum does as the table grows
		`UPDATE outbox.census SET counted_until = now() - interval '15 seconds'`,
	} {
		if _, err := db.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
}
