package bench_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
)

// consolePages are looked at among millions of intents. They are the pages of each route, each filter of a list, and each
// kind of search, but no page of a change under way. Readers who watch have the first ten open.
var consolePages = []string{
	"/", "/runs", "/runs/run-17", "/intents", "/intents?status=failed", "/intents?status=pending&provider=sim", "/intents?dead=1",
	"/intents?error=http_422", "/intents/1700", "/incidents", "/sagas", "/providers", "/workers", "/operations", "/search?q=order-77", "/search?q=run-1",
	"/runs?below=1700", "/sagas/run-170", "/sagas?state=compensated", "/incidents?all=1", "/incidents?provider=sim", "/incidents?kind=refused_intent",
	"/providers/sim", "/tenants", "/config", "/doctor", "/operations?below=1700",
	"/intents?status=completed", "/intents?status=unknown", "/intents?status=in_progress", "/intents?provider=sim", "/intents?tool=sim/act", "/intents?run=run-170",
	"/intents?scope=order-77", "/intents?tenant=tenant-7", "/intents?reference=eff_1700", "/intents?since=1h", "/intents?until=1s", "/intents?below=1700",
	"/search?q=1700", "/search?q=eff_1700", "/search?q=none",
}

// describe adds what the pages show that are not about intents. A saga of the runs has ended, so that it costs the
// daemons nothing.
func (o *outbox) describe() {
	o.b.Helper()
	for _, statement := range []string{
		`UPDATE outbox.attempt SET provider_ref = 'eff_' || intent_id WHERE intent_id % 100 = 0`,
		`INSERT INTO outbox.provider (name) VALUES ('sim')`,
		`INSERT INTO outbox.minute (at, provider, completed, took) SELECT date_trunc('minute', now()) - n * interval '1 minute', 'sim', 60000, '{30000,20000,9000,1000}' FROM generate_series(1, 60) n`,
		`INSERT INTO outbox.breaker_change (name, state) SELECT 'sim', (ARRAY['open', 'half_open', 'closed'])[1 + n % 3] FROM generate_series(1, 50) n`,
		`INSERT INTO outbox.tenant (name, role) SELECT 'tenant-' || n, 'tenant-' || n FROM generate_series(1, ` + strconv.Itoa(consoleTenants) + `) n`,
		`INSERT INTO outbox.operation (operator, action, provider, reason) SELECT 'operator:ann', 'pause', 'sim', 'because' FROM generate_series(1, 10000)`,
		`INSERT INTO outbox.saga (agent_run_id, cause, state, ended_at) SELECT agent_run_id, id, 'compensated', now() FROM outbox.intent WHERE id % 1000 = 700`,
		`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) SELECT 'refused_intent', id, agent_run_id FROM outbox.intent WHERE id % 1000 = 0`,
	} {
		o.exec(statement)
	}
	o.exec(`VACUUM ANALYZE outbox.attempt, outbox.tenant, outbox.operation, outbox.saga, outbox.incident`)
}

// consoleTenants are more than a page lists.
const consoleTenants = 60

// BenchmarkConsole asks how long a reader waits for a page among 5 million intents, of which 2 million
// are due, and what ten open pages cost a drain.
func BenchmarkConsole(b *testing.B) {
	const looks, readers = 40, 10
	outbox, sim := newOutbox(b), noop("sim")
	outbox.settled(rows(b, 3_000_000))
	outbox.exec(`UPDATE outbox.attempt SET outcome = 'rejected', status = 'failed', error = 'http_422' WHERE intent_id % 100 = 0`)
	outbox.describe()
	refill := func() { // a daemon drains more than is waited for
		if missing := rows(b, 2_000_000) - outbox.backlog(); missing > 0 {
			outbox.enqueueOf(consoleTenants, missing, sim)
			outbox.exec(`VACUUM ANALYZE outbox.intent, outbox.queue`)
		}
	}
	refill()
	key := read[string](outbox.database, `SELECT idempotency_key FROM outbox.status WHERE intent_id = 1700`)
	visited := append(slices.Clone(consolePages), "/search?q="+key)
	pages := serveConsole(b, outbox)
	for b.Loop() {
		// A diagnosis is kept for a minute, so only the first look at it waits.
		began := time.Now()
		look(b.Context(), pages, "/doctor")
		b.ReportMetric(milliseconds(time.Since(began)), "doctor-ms")
		worst, slowest := 0.0, ""
		for _, path := range visited {
			took := make([]float64, looks)
			for i := range took {
				started := time.Now()
				if status := look(b.Context(), pages, path); status != http.StatusOK {
					b.Fatalf("%s: %d", path, status)
				}
				took[i] = milliseconds(time.Since(started))
			}
			if p95 := quantile(took, 0.95); p95 > worst {
				worst, slowest = p95, path
			}
		}
		b.Logf("the slowest page is %s", slowest)
		b.ReportMetric(worst, "page-p95-ms")

		var times [2]series // of all the machine's processors, a row; rates on a busy machine vary more
		drain := func(contender int) float64 {
			queued, began := outbox.backlog(), processorTime(b)
			rate, _ := drainSome(outbox, rows(b, fullRows), sim)
			used := processorTime(b) - began
			times[contender] = append(times[contender], used.Seconds()/float64(queued-outbox.backlog()))
			return rate
		}
		rates := race(rounds,
			func() float64 {
				refill()
				return drain(0)
			},
			func() float64 {
				refill()
				ctx, leave := context.WithCancel(b.Context())
				var watching sync.WaitGroup
				for reader := range readers {
					watching.Go(func() { watch(ctx, pages, consolePages[reader%len(consolePages)]) })
				}
				rate := drain(1)
				leave()
				watching.Wait()
				return rate
			},
		)
		b.ReportMetric(rates[0].median(), "unwatched-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-unwatched", rates[1].times(rates[0]))
		if times[0].median() > 0 {
			reportRatio(b, "x-unwatched-time", times[1].times(times[0]))
		}
	}
	b.ReportMetric(0, "ns/op")
}

// processorTime returns the time for which the machine's processors have worked since it started, or 0 where no
// /proc/stat tells it.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	const user, nice, system, irq, softirq, second = 1, 2, 3, 6, 7, 100
	var ticks time.Duration
	for _, field := range []int{user, nice, system, irq, softirq} {
		n, err := strconv.Atoi(fields[field])
		if err != nil {
			b.Fatal(err)
		}
		ticks += time.Duration(n)
	}
	return ticks * time.Second / second
}

func serveConsole(b *testing.B, outbox *outbox) http.Handler {
	b.Helper()
	pool, err := pgxpool.New(b.Context(), outbox.url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	patient := doctor.Patient{Bystander: true, Database: pool.Config()}
	pages, err := console.New(console.Options{
		Pool: pool, Log: slog.New(slog.NewTextHandler(b.Output(), nil)),
		Doctor: func(ctx context.Context) []doctor.Finding {
			findings, _ := doctor.Examine(ctx, patient) // an unreachable database is one of the findings
			return findings
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	return pages
}

// look follows one redirect, as a browser does: a search that finds one row leads there.
func look(ctx context.Context, pages http.Handler, path string) int {
	visit := func(path string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		pages.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil))
		return answer
	}
	answer := visit(path)
	if answer.Code == http.StatusSeeOther {
		answer = visit(answer.Header().Get("Location"))
	}
	return answer.Code
}

// watch looks at a page every two seconds, as the console's script does.
func watch(ctx context.Context, pages http.Handler, path string) {
	again := time.NewTicker(2 * time.Second)
	defer again.Stop()
	for {
		look(ctx, pages, path)
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}
