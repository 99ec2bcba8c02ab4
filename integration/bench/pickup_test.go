package bench_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// BenchmarkPickUp looks how long it takes from the call of enqueue to the start of
// the attempt: enqueued, notified, claimed and handed to a dispatcher. The lane
// waits each time. One agent enqueues an intent every 20 ms, and in between the
// machine goes to sleep; then another one does so in turn, as soon as it hears that
// its last one has ended, and so on.
func BenchmarkPickUp(b *testing.B) {
	const times, samples, pace = 10, 100, 20 * time.Millisecond
	for b.Loop() {
		outbox := newOutbox(b)
		daemon := startDaemon(b, outbox.url, noop("sim"))
		ended := outbox.ended()
		var apart, inTurn []float64
		for range times {
			ticker := time.NewTicker(pace)
			apart = append(apart, outbox.pickUps(daemon, rows(b, samples), func(int64) { <-ticker.C })...)
			ticker.Stop()
			inTurn = append(inTurn, outbox.pickUps(daemon, rows(b, samples), ended)...)
		}
		b.ReportMetric(quantile(inTurn, 0.5), "in-turn-p50-ms")
		b.ReportMetric(quantile(inTurn, 0.99), "in-turn-p99-ms")
		b.ReportMetric(quantile(apart, 0.5), "20ms-apart-p50-ms")
		b.ReportMetric(quantile(apart, 0.99), "20ms-apart-p99-ms")
		daemon.end()
		outbox.drop()
	}
	b.ReportMetric(0, "ns/op")
}

// ended waits until an intent has had its attempt.
func (o *outbox) ended() (wait func(intent int64)) {
	o.b.Helper()
	o.exec(`CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('ended', NEW.intent_id::text); RETURN NULL; END $$`)
	o.exec(`CREATE TRIGGER tell AFTER INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION tell()`)
	conn, err := pgx.Connect(o.b.Context(), o.url)
	if err != nil {
		o.b.Fatal(err)
	}
	o.b.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(o.b.Context(), `LISTEN ended`); err != nil {
		o.b.Fatal(err)
	}
	return func(intent int64) {
		for {
			told, err := conn.WaitForNotification(o.b.Context())
			if err != nil {
				o.b.Fatal(err)
			}
			if told.Payload == strconv.FormatInt(intent, 10) {
				return
			}
		}
	}
}

// pickUps enqueues one intent at a time, and returns how long each waited.
func (o *outbox) pickUps(daemon *daemon, samples int, next func(intent int64)) (took []float64) {
	o.b.Helper()
	called := map[int64]time.Time{}
	for range samples {
		at := time.Now()
		intent := read[int64](o.database, `
			SELECT intent_id FROM outbox.enqueue('run', $1, 'sim/act', 'order', $2)`, at.String(), payloadText)
		called[intent] = at
		next(intent)
	}
	o.awaitSettled(daemon)
	return o.waits(called)
}

// waits takes the clocks of this process and of the database for one: they are
// on one machine.
func (o *outbox) waits(called map[int64]time.Time) (took []float64) {
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
		if at, asked := called[intent]; asked {
			took = append(took, milliseconds(started.Sub(at)))
		}
	}
	if rows.Err() != nil {
		o.b.Fatal(rows.Err())
	}
	return took
}
