package bench_test

import (
	"testing"
	"time"
)

// BenchmarkPickUp enqueues for a lane that waits, one intent at a time, and
// looks how long it takes from that call to the start of the attempt: enqueued,
// notified, claimed and handed to a dispatcher.
func BenchmarkPickUp(b *testing.B) {
	const samples, pace = 1000, 20 * time.Millisecond
	for b.Loop() {
		outbox := newOutbox(b)
		daemon := startDaemon(b, outbox.url, noop("sim"))
		called := map[int64]time.Time{}
		ticker := time.NewTicker(pace)
		for range rows(b, samples) {
			<-ticker.C
			at := time.Now()
			called[read[int64](outbox.database, `
				SELECT intent_id FROM outbox.enqueue('run', $1, 'sim/act', 'order', $2)`, at.String(), payloadText)] = at
		}
		ticker.Stop()
		awaitCompleted(len(called), daemon)
		outbox.awaitSettled(daemon)
		daemon.end()
		took := outbox.pickUps(called)
		b.ReportMetric(quantile(took, 0.5), "p50-ms")
		b.ReportMetric(quantile(took, 0.99), "p99-ms")
		outbox.drop()
	}
	b.ReportMetric(0, "ns/op")
}

// pickUps takes the clocks of this process and of the database for one: they
// are on one machine.
func (o *outbox) pickUps(called map[int64]time.Time) (took []float64) {
	o.b.Helper()
	rows, err := o.Query(o.b.Context(), `SELECT intent_id, started_at FROM outbox.attempt WHERE attempt = 1`)
	if err != nil {
		o.b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var intent int64
		var started time.Time
		if err := rows.Scan(&intent, &started); err != nil {
			o.b.Fatal(err)
		}
		took = append(took, milliseconds(started.Sub(called[intent])))
	}
	if rows.Err() != nil {
		o.b.Fatal(rows.Err())
	}
	return took
}
