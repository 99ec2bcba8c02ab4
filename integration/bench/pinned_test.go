package bench_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// BenchmarkPinnedSnapshot drains beside a transaction that somebody left open:
// vacuum can remove nothing of what was claimed, and every claim meets more
// that is dead.
func BenchmarkPinnedSnapshot(b *testing.B) {
	jobs := rows(b, 300_000)
	for b.Loop() {
		middles := race(rounds, func() float64 { return drainPinned(b, jobs) })
		b.ReportMetric(middles[0].median(), "last/first")
	}
	b.ReportMetric(0, "ns/op")
}

// drainPinned compares the rate of the last tenth with that of the first.
func drainPinned(b *testing.B, jobs int) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	outbox.enqueue(jobs, noop("sim"))
	snapshot, err := outbox.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		b.Fatal(err)
	}
	defer snapshot.Rollback(b.Context())
	if _, err := snapshot.Exec(b.Context(), `SELECT FROM outbox.queue LIMIT 1`); err != nil {
		b.Fatal(err)
	}
	daemon := startDaemon(b, outbox.url, noop("sim"))
	awaitCompleted(jobs, daemon)
	daemon.end()
	if err := snapshot.Rollback(b.Context()); err != nil { // the database is to be dropped
		b.Fatal(err)
	}
	return read[float64](outbox.database, `
		WITH ended AS (SELECT started_at, finished_at, ntile(10) OVER (ORDER BY finished_at) AS tenth FROM outbox.attempt),
		     took AS (SELECT tenth, extract(epoch FROM max(finished_at) - min(finished_at))::float8 AS seconds FROM ended GROUP BY tenth)
		SELECT (SELECT seconds FROM took WHERE tenth = 1) / (SELECT seconds FROM took WHERE tenth = 10)`)
}
