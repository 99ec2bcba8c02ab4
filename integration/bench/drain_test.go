package bench_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// BenchmarkDrain measures the outbox's own cost: the providers do nothing. River does the same work for its jobs. It
// is measured with its own schema, and without two indexes that this work does not need.
func BenchmarkDrain(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return drain(b, jobs, noop("sim")).rate },
			func() float64 { return workNothing(newRiverDatabase(b), jobs) },
			func() float64 { return workNothing(newRiverDatabase(b).withoutGIN(), jobs) },
		)
		b.ReportMetric(rates[0].median(), "rows/s")
		b.ReportMetric(rates[1].median(), "river-rows/s")
		b.ReportMetric(rates[2].median(), "river-without-gin-rows/s")
		reportRatio(b, "x-river", rates[0].times(rates[1]))
		reportRatio(b, "x-river-without-gin", rates[0].times(rates[2]))
	}
	b.ReportMetric(0, "ns/op")
}

// drained holds the figures of a whole drain.
type drained struct {
	rate      float64 // attempts a second
	walPerRow float64 // bytes
}

// drain measures how one daemon settles intents of these providers.
func drain(b testing.TB, jobs int, providers ...provider) drained {
	b.Helper()
	return drainOf(b, 1, jobs, providers...)
}

// drainOf is like drain, but spreads the intents over that many tenants.
func drainOf(b testing.TB, tenants, jobs int, providers ...provider) drained {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	return outbox.drain(tenants, jobs, providers...)
}

func (o *outbox) drain(tenants, jobs int, providers ...provider) drained {
	o.b.Helper()
	o.enqueueOf(tenants, jobs, providers...)
	since, before := o.now(), o.walPosition()
	daemon := startDaemon(o.b, o.url, providers...)
	awaitCompleted(jobs, daemon)
	daemon.end()
	return drained{
		rate:      o.attemptsPerSecond(since),
		walPerRow: (o.walPosition() - before) / float64(jobs),
	}
}

func workNothing(d *riverDatabase, jobs int) float64 {
	d.b.Helper()
	defer d.drop()
	d.insert(jobs)
	return d.jobsPerSecond(riverSetup{Jobs: jobs, MaxWorkers: riverWorkers, Connections: riverConnections})
}

// BenchmarkUnawaited measures the cost of the trigger that tells waiters of a result, when there are no waiters. It
// compares a drain with the trigger to a drain without it.
func BenchmarkUnawaited(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		var wal [2]series
		rates := race(rounds,
			func() float64 { return drainUnawaited(b, jobs, false, &wal[0]) },
			func() float64 { return drainUnawaited(b, jobs, true, &wal[1]) },
		)
		b.ReportMetric(rates[0].median(), "untold-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-untold", rates[1].times(rates[0]))
		reportRatio(b, "x-untold-WAL", wal[1].times(wal[0]))
	}
	b.ReportMetric(0, "ns/op")
}

func drainUnawaited(b testing.TB, jobs int, tells bool, wal *series) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	if !tells {
		outbox.exec(`DROP TRIGGER tell_waiters ON outbox.attempt`)
	}
	result := outbox.drain(1, jobs, noop("sim"))
	*wal = append(*wal, result.walPerRow)
	return result.rate
}

// BenchmarkHTTP sends each intent to a server on the same machine. A client that does nothing else has as many
// requests in flight, and its rate is the most that a dispatcher could reach. River is faster with more workers than
// connections, so it is measured with those as well.
func BenchmarkHTTP(b *testing.B) {
	jobs := rows(b, fullRows/4)
	provider := startProvider(b, plain)
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return callBarely(b, provider, jobs) },
			func() float64 { return drain(b, jobs, served("sim", provider)).rate },
			func() float64 { return callFromJobs(newRiverDatabase(b), provider, jobs, inFlight) },
			func() float64 { return callFromJobs(newRiverDatabase(b), provider, jobs, riverMoreWorkers) },
		)
		b.ReportMetric(rates[3].median(), "river-256-workers-rows/s")
		reportRatio(b, "x-river-256-workers", rates[1].times(rates[3]))
		b.ReportMetric(rates[0].median(), "bare-requests/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		b.ReportMetric(rates[2].median(), "river-rows/s")
		reportRatio(b, "x-bare", rates[1].times(rates[0]))
		reportRatio(b, "x-river", rates[1].times(rates[2]))
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHTTPS measures the same over TLS, with HTTP/1.1 and with HTTP/2. Users reach their providers over TLS.
func BenchmarkHTTPS(b *testing.B) {
	jobs := rows(b, fullRows/4)
	one, two := startProvider(b, tlsHTTP1), startProvider(b, tlsHTTP2)
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return callBarely(b, one, jobs) },
			func() float64 { return drain(b, jobs, served("sim", one)).rate },
			func() float64 { return callBarely(b, two, jobs) },
			func() float64 { return drain(b, jobs, served("sim", two)).rate },
		)
		b.ReportMetric(rates[0].median(), "bare-h1-requests/s")
		b.ReportMetric(rates[1].median(), "h1-rows/s")
		b.ReportMetric(rates[2].median(), "bare-h2-requests/s")
		b.ReportMetric(rates[3].median(), "h2-rows/s")
		reportRatio(b, "x-bare-h1", rates[1].times(rates[0]))
		reportRatio(b, "x-bare-h2", rates[3].times(rates[2]))
	}
	b.ReportMetric(0, "ns/op")
}

// callBarely returns the rate of a plain client with inFlight requests in flight.
func callBarely(b testing.TB, provider endpoint, requests int) float64 {
	b.Helper()
	client := newClient()
	client.Transport.(*http.Transport).TLSClientConfig = provider.trust()
	defer client.CloseIdleConnections()
	body := []byte(payloadText)
	var left atomic.Int64
	left.Store(int64(requests))
	var callers sync.WaitGroup
	started := time.Now()
	for range inFlight {
		callers.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(b.Context(), client, provider.url, body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	return float64(requests) / time.Since(started).Seconds()
}

func callFromJobs(d *riverDatabase, provider endpoint, jobs, workers int) float64 {
	d.b.Helper()
	defer d.drop()
	d.insert(jobs)
	return d.jobsPerSecond(riverSetup{Jobs: jobs, ProviderURL: provider.url, MaxWorkers: workers, Connections: riverConnections})
}

// lanes is how many providers share one daemon and its commits.
const lanes = 50

// BenchmarkLanes splits the same work among many providers with a concurrency of 32. Their tools are not idempotent,
// so a lane claims no more intents than it can send at once.
func BenchmarkLanes(b *testing.B) {
	jobs := rows(b, fullRows)
	small := noops(lanes)
	for i := range small {
		small[i].concurrency, small[i].promise = 32, "class: non_idempotent"
	}
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return drain(b, jobs, noop("sim")).rate },
			func() float64 { return drain(b, jobs, small...).rate },
		)
		b.ReportMetric(rates[0].median(), "one-lane-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-one-lane", rates[1].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHangingLane measures how fast all other lanes drain while one provider does not answer.
func BenchmarkHangingLane(b *testing.B) {
	jobs := rows(b, fullRows/2)
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return drainBeside(b, jobs, false) },
			func() float64 { return drainBeside(b, jobs, true) },
		)
		b.ReportMetric(rates[0].median(), "alone-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-alone", rates[1].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

func noops(n int) []provider {
	providers := make([]provider, n)
	for i := range providers {
		providers[i] = noop(fmt.Sprintf("sim%d", i))
	}
	return providers
}

// drainBeside returns the rate of all lanes but one. That lane has work that hangs, or no work.
func drainBeside(b testing.TB, jobs int, hangs bool) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	hanging, others := noop("hanging"), noops(lanes-1)
	hanging.settings = "hangs: true"
	outbox.enqueue(jobs, others...)
	if hangs {
		outbox.enqueue(2*inFlight, hanging)
	}
	since := outbox.now()
	daemon := startDaemon(b, outbox.url, append(others, hanging)...)
	awaitCompleted(jobs, daemon)
	daemon.end()
	return outbox.attemptsPerSecond(since)
}

// There are more rounds than usual, because the ratio differs by a tenth from round to round.
const replicaRounds = 21

// BenchmarkReplicas drains one queue with several daemons. If one daemon keeps the whole machine busy, more daemons
// can only slow each other down.
func BenchmarkReplicas(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		rates := race(replicaRounds,
			func() float64 { return drainTogether(b, jobs, 1) },
			func() float64 { return drainTogether(b, jobs, 2) },
			func() float64 { return drainTogether(b, jobs, 3) },
		)
		b.ReportMetric(rates[0].median(), "rows/s-1")
		b.ReportMetric(rates[1].median(), "rows/s-2")
		b.ReportMetric(rates[2].median(), "rows/s-3")
		reportRatio(b, "x-alone-2", rates[1].times(rates[0]))
		reportRatio(b, "x-alone-3", rates[2].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

func drainTogether(b testing.TB, jobs, replicas int) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	since := outbox.now()
	daemons := make([]*daemon, replicas)
	for i := range daemons {
		daemons[i] = startDaemon(b, outbox.url, noop("sim"))
	}
	outbox.enqueue(jobs, noop("sim"))
	awaitCompleted(jobs, daemons...)
	for _, daemon := range daemons {
		daemon.end()
	}
	return outbox.attemptsPerSecond(since)
}

// BenchmarkRetries throttles a share of the intents once. Each of them gets a second attempt.
func BenchmarkRetries(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		wal := map[int]float64{}
		throttled := func(percent int) func() float64 {
			return func() float64 {
				provider := noop("sim")
				provider.settings = fmt.Sprintf("throttled_percent: %d", percent)
				d := drain(b, jobs, provider)
				wal[percent] = d.walPerRow // hardly differs from round to round
				return d.rate
			}
		}
		rates := race(rounds, throttled(0), throttled(10), throttled(50))
		b.ReportMetric(rates[0].median(), "attempts/s-0")
		b.ReportMetric(rates[1].median(), "attempts/s-10")
		b.ReportMetric(rates[2].median(), "attempts/s-50")
		reportRatio(b, "x-50-of-0", rates[2].times(rates[0]))
		for percent, size := range wal {
			b.ReportMetric(size, fmt.Sprintf("WAL-B/row-%d", percent))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPinnedSnapshot drains while a client leaves a transaction open. Vacuum then cannot remove the claimed
// rows, and every claim meets more dead rows.
func BenchmarkPinnedSnapshot(b *testing.B) {
	jobs := rows(b, 300_000)
	for b.Loop() {
		middles := race(rounds, func() float64 { return drainPinned(b, jobs) })
		reportRatio(b, "last/first", middles[0])
	}
	b.ReportMetric(0, "ns/op")
}

// drainPinned returns the rate of the last tenth divided by the rate of the first tenth.
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
	if err := snapshot.Rollback(b.Context()); err != nil { // otherwise drop would wait for the connection
		b.Fatal(err)
	}
	return read[float64](outbox.database, `
		WITH ended AS (SELECT started_at, finished_at, ntile(10) OVER (ORDER BY finished_at) AS tenth FROM outbox.attempt),
		     took AS (SELECT tenth, extract(epoch FROM max(finished_at) - min(finished_at))::float8 AS seconds FROM ended GROUP BY tenth)
		SELECT (SELECT seconds FROM took WHERE tenth = 1) / (SELECT seconds FROM took WHERE tenth = 10)`)
}
