package bench_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// BenchmarkFairness asks how long the lone intents of one tenant wait beside a million of another, against how long
// they wait alone, what a thousand tenants cost where there could be one, and what a list of one tenant costs where
// there could be none.
func BenchmarkFairness(b *testing.B) {
	const alone, floods, tenants = 60, 4, 1000
	sim := noop("sim")
	jobs := rows(b, fullRows)
	for b.Loop() {
		own := waitsAlone(b, alone, sim)
		var beside []float64
		for range floods {
			beside = append(beside, waitsBeside(b, rows(b, middleBacklog), sim)...)
		}
		b.ReportMetric(quantile(own, 0.5), "alone-p50-ms")
		b.ReportMetric(quantile(own, 0.99), "alone-p99-ms")
		b.ReportMetric(float64(len(beside)), "lone-intents")
		b.ReportMetric(quantile(beside, 0.5)-quantile(own, 0.5), "more-p50-ms")
		b.ReportMetric(quantile(beside, 0.99)-quantile(own, 0.99), "more-p99-ms")

		rates := race(rounds,
			func() float64 { return drainOf(b, 1, jobs, sim).rate },
			func() float64 { return drainOf(b, tenants, jobs, sim).rate },
		)
		b.ReportMetric(rates[1].median(), "1000-tenants-rows/s")
		reportRatio(b, "x-one-tenant", rates[1].times(rates[0]))

		listed := race(rounds,
			func() float64 { return drain(b, jobs, sim).rate },
			func() float64 { return drainListed(b, jobs, sim) },
		)
		b.ReportMetric(listed[1].median(), "listed-rows/s")
		reportRatio(b, "x-unlisted", listed[1].times(listed[0]))
	}
	b.ReportMetric(0, "ns/op")
}

// waitsAlone enqueues an intent each second for a daemon that has nothing else to do.
func waitsAlone(b testing.TB, intents int, sim provider) []float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	daemon := startDaemon(b, outbox.url, sim)
	defer daemon.end()
	return outbox.pickUps(daemon, intents, func(int64) { time.Sleep(time.Second) })
}

// waitsBeside does so while so many intents of another tenant drain.
func waitsBeside(b testing.TB, flood int, sim provider) []float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	outbox.exec(`INSERT INTO outbox.tenant (name, role) VALUES ('flood', 'flood')`)
	outbox.fill(flood, sim)
	daemon := startDaemon(b, outbox.url, sim)
	defer daemon.end()
	return outbox.pickUpsBeside(daemon, time.Second)
}

// drainListed drains the intents of one tenant, where a list names it.
func drainListed(b testing.TB, jobs int, sim provider) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	outbox.exec(`INSERT INTO outbox.tenant (name, role) VALUES ('only', 'only')`)
	return outbox.drain(1, jobs, sim).rate
}

// pickUpsBeside enqueues an intent in each interval, of the tenant 0, until nothing of the others is queued.
func (o *outbox) pickUpsBeside(daemon *daemon, interval time.Duration) []float64 {
	o.b.Helper()
	since := o.now()
	daemon.await("emptied the queue", func() bool {
		next := time.Now().Add(interval)
		o.exec(`SELECT outbox.enqueue('lone', clock_timestamp()::text, 'sim/act', 'order', $1)`, payloadText)
		time.Sleep(time.Until(next))
		return read[bool](o.database, `SELECT NOT EXISTS (SELECT FROM outbox.queue WHERE tenant > 0)`)
	})
	o.awaitSettled(daemon)
	return drainertest.Column[float64](o.b, o, `
		SELECT 1000 * extract(epoch FROM a.started_at - i.created_at)::float8 FROM outbox.intent i JOIN outbox.attempt a ON a.intent_id = i.id
		WHERE i.agent_run_id = 'lone' AND i.created_at > $1::timestamptz`, since)
}
