package bench_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/console"
)

// consolePages are looked at among millions of intents: lists by index and without one, a run, a search.
var consolePages = []string{
	"/", "/runs", "/runs/run-17", "/intents", "/intents?status=failed", "/intents?status=pending&provider=sim", "/intents?dead=1",
	"/intents?error=http_422", "/intents/1700", "/incidents", "/sagas", "/providers", "/workers", "/operations", "/search?q=order-77", "/search?q=run-1",
}

// BenchmarkConsole asks how long a reader waits for a page among 5 million intents, of which 2 million
// are due, and what ten open pages cost a drain.
func BenchmarkConsole(b *testing.B) {
	const looks, readers = 40, 10
	outbox, sim := newOutbox(b), noop("sim")
	outbox.settled(rows(b, 3_000_000))
	outbox.exec(`UPDATE outbox.attempt SET outcome = 'rejected', status = 'failed', error = 'http_422' WHERE intent_id % 100 = 0`)
	refill := func() { // a daemon drains more than is waited for
		if missing := rows(b, 2_000_000) - outbox.backlog(); missing > 0 {
			outbox.fill(missing, sim)
		}
	}
	refill()
	outbox.exec(`VACUUM ANALYZE outbox.attempt`)
	pages := serveConsole(b, outbox)
	for b.Loop() {
		worst, slowest := 0.0, ""
		for _, path := range consolePages {
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

		rates := race(rounds,
			func() float64 {
				refill()
				rate, _ := drainSome(outbox, rows(b, fullRows/2), sim)
				return rate
			},
			func() float64 {
				refill()
				ctx, leave := context.WithCancel(b.Context())
				var watching sync.WaitGroup
				for reader := range readers {
					watching.Go(func() { watch(ctx, pages, consolePages[reader%len(consolePages)]) })
				}
				rate, _ := drainSome(outbox, rows(b, fullRows/2), sim)
				leave()
				watching.Wait()
				return rate
			},
		)
		b.ReportMetric(rates[0].median(), "unwatched-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		reportRatio(b, "x-unwatched", rates[1].times(rates[0]))
	}
	b.ReportMetric(0, "ns/op")
}

func serveConsole(b *testing.B, outbox *outbox) http.Handler {
	b.Helper()
	pool, err := pgxpool.New(b.Context(), outbox.url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	pages, err := console.New(console.Options{Pool: pool, Log: slog.New(slog.NewTextHandler(b.Output(), nil))})
	if err != nil {
		b.Fatal(err)
	}
	return pages
}

func look(ctx context.Context, pages http.Handler, path string) int {
	answer := httptest.NewRecorder()
	pages.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil))
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
