package bench_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainertest"
)

const (
	deepBacklog    = 5_000_000
	middleBacklog  = 1_000_000
	shallowBacklog = 10_000
)

// BenchmarkBacklog asks what a daemon loses, and what memory it takes, when
// millions wait.
func BenchmarkBacklog(b *testing.B) {
	deep, shallow := newOutbox(b), newOutbox(b)
	sim := noop("sim")
	deep.fill(rows(b, middleBacklog+fullRows), sim)
	_, middleMemory := drainSome(deep, rows(b, fullRows), sim)
	deep.fill(rows(b, deepBacklog+rounds*fullRows/2)-deep.backlog(), sim)
	shallow.fill(rows(b, shallowBacklog), sim)
	drainSome(shallow, rows(b, shallowBacklog)/2, sim) // a daemon begins the outbox's history, without which nothing is claimed
	shallow.fill(rows(b, shallowBacklog)-shallow.backlog(), sim)
	for b.Loop() {
		claims := race(rounds,
			func() float64 { return claimMedian(shallow, sim) },
			func() float64 { return claimMedian(deep, sim) },
		)
		b.ReportMetric(claims[0].median(), "shallow-claim-p50-ms")
		b.ReportMetric(claims[1].median(), "claim-p50-ms")
		reportRatio(b, "x-shallow-claim-p50", claims[1].times(claims[0]))

		var memory residence
		rates := race(rounds,
			func() float64 { return drainRefills(shallow, rows(b, fullRows/2), sim) },
			func() (rate float64) {
				rate, memory = drainSome(deep, rows(b, fullRows/2), sim)
				return rate
			},
		)
		b.ReportMetric(rates[0].median(), "shallow-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-shallow-rows", rates[1].times(rates[0]))
		if memory.own > 0 { // else it is unknown, which must not look like a goal that holds
			b.ReportMetric(middleMemory.own, "MB-1M")
			b.ReportMetric(memory.own, "MB-5M")
			b.ReportMetric(memory.withProgram, "MB-5M-with-program")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// fill also does what vacuum would come to do in the middle of a round.
func (o *outbox) fill(rows int, providers ...provider) {
	o.b.Helper()
	o.enqueue(rows, providers...)
	o.exec(`VACUUM ANALYZE outbox.intent, outbox.queue`)
}

func (o *outbox) backlog() int { return read[int](o.database, `SELECT count(*) FROM outbox.queue`) }

// drainSome takes that many off a backlog that stays deep.
func drainSome(o *outbox, rows int, provider provider) (rate float64, memory residence) {
	o.b.Helper()
	since := o.now()
	daemon := startDaemon(o.b, o.url, provider)
	awaitCompleted(rows, daemon)
	memory = daemon.memory()
	daemon.end()
	return o.attemptsPerSecond(since), memory
}

// drainRefills fills a shallow backlog up each time that it is empty, and
// returns the median of what the daemon made of each.
func drainRefills(o *outbox, total int, provider provider) float64 {
	o.b.Helper()
	refill := max(1, rows(o.b, shallowBacklog))
	daemon := startDaemon(o.b, o.url, provider)
	completed := o.backlog()
	awaitCompleted(completed, daemon)
	var rates []float64
	for completed < total {
		since := o.now()
		o.enqueue(refill, provider)
		completed += refill
		awaitCompleted(completed, daemon)
		o.awaitSettled(daemon)
		rates = append(rates, o.attemptsPerSecond(since))
	}
	daemon.end()
	return quantile(rates, 0.5)
}

// awaitSettled returns once nothing is queued or claimed.
func (o *outbox) awaitSettled(daemon *daemon) {
	o.b.Helper()
	daemon.await("settled everything", func() bool {
		return read[bool](o.database, `SELECT NOT EXISTS (SELECT FROM outbox.claim) AND NOT EXISTS (SELECT FROM outbox.queue)`)
	})
}

// claimMedian is of the daemon's own statement, for a hundred rows, in
// milliseconds. Each claim is undone, so that the next one finds the same.
func claimMedian(o *outbox, provider provider) float64 {
	o.b.Helper()
	const claims, limit = 200, 100
	claim := template.Must(template.ParseFiles(filepath.FromSlash("../../drainer/postgres/sql/claim.sql")))
	var statement strings.Builder
	if err := claim.Execute(&statement, struct{ Probe, Operation bool }{}); err != nil {
		o.b.Fatal(err)
	}
	worker := uuid.New()
	o.exec(`INSERT INTO outbox.worker (worker_id, providers) VALUES ($1, $2)`, worker, []string{provider.name})
	defer o.exec(`DELETE FROM outbox.worker WHERE worker_id = $1`, worker)
	conn, err := o.Acquire(o.b.Context())
	if err != nil {
		o.b.Fatal(err)
	}
	defer conn.Release()
	took, history := make([]float64, claims), read[int](o.database, `SELECT max(id) FROM outbox.history`)
	for i := range took {
		tx, err := conn.Begin(o.b.Context())
		if err != nil {
			o.b.Fatal(err)
		}
		started := time.Now()
		rows, _ := tx.Query(o.b.Context(), statement.String(), worker,
			[]string{provider.name}, []int{limit}, []string{provider.name}, []string{""}, 0, []int64{1 << 40},
			[]int{1}, []int16{0}, []int16{0}, []int{limit}, []pgtype.Timestamptz{{Valid: true, InfinityModifier: pgtype.NegativeInfinity}}, []int64{0},
			[]bool{false}, history, nil, []int{0}, []string{},
			[]pgtype.Timestamptz{{Valid: true, InfinityModifier: pgtype.Infinity}}, []int64{math.MaxInt64}, []bool{false})
		if claimed, err := pgx.CollectRows(rows, func(pgx.CollectableRow) (int, error) { return 1, nil }); err != nil || len(claimed) != limit {
			o.b.Fatalf("claimed %d rows, want %d: %v", len(claimed), limit, err)
		}
		took[i] = milliseconds(time.Since(started))
		if err := tx.Rollback(o.b.Context()); err != nil {
			o.b.Fatal(err)
		}
	}
	return quantile(took, 0.5)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkStatus is an agent that asks where its intent stands, by the
// four-tuple, among a million that are settled.
func BenchmarkStatus(b *testing.B) {
	const lookups = 20_000
	intents := rows(b, 1_000_000)
	outbox := newOutbox(b)
	outbox.settled(intents)
	for b.Loop() {
		took := make([]float64, lookups)
		for i := range took {
			n := 1 + rand.IntN(intents)
			started := time.Now()
			status := read[string](outbox.database, `
				SELECT status FROM outbox.status
				WHERE agent_run_id = $1 AND step_id = $2 AND tool_name = 'sim/act' AND business_scope = $3`,
				fmt.Sprintf("run-%d", n/10), fmt.Sprintf("step-%d", n%10), fmt.Sprintf("order-%d", n))
			took[i] = milliseconds(time.Since(started))
			if status != "completed" {
				b.Fatalf("intent %d is %s", n, status)
			}
		}
		b.ReportMetric(quantile(took, 0.5), "p50-ms")
		b.ReportMetric(quantile(took, 0.99), "p99-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// settled fills the outbox with intents that were completed at once.
func (o *outbox) settled(intents int) {
	o.b.Helper()
	o.enqueue(intents, noop("sim"))
	o.direct(func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, http_status, response)
			SELECT intent_id, 1, gen_random_uuid(), next_attempt_at, 'completed', 'completed', 200, '{"id": "eff_1"}' FROM outbox.queue`); err != nil {
			return err
		}
		_, err := tx.Exec(o.b.Context(), `TRUNCATE outbox.queue`)
		return err
	})
	o.exec(`VACUUM ANALYZE outbox.intent, outbox.attempt, outbox.queue`)
}

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
