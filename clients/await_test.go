package clients_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// The programs below wait for a thousand intents and three more at once, and print the number of each as its wait ends.

func BenchmarkPythonAwait(b *testing.B) {
	interpreter := python(b)
	benchmarkAwait(b, func(url string) *exec.Cmd {
		command := exec.CommandContext(b.Context(), interpreter, "-c", `
import asyncio, sys
from drainer import Outbox

async def main():
    box = Outbox()
    async def one(intent):
        done = await box.result(sys.argv[1], intent, timeout=120)
        print(intent, done.status, flush=True)
    await asyncio.gather(*(one(n) for n in range(1, 1004)))

asyncio.run(main())
`, url)
		command.Env = append(os.Environ(), "PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1")
		return command
	})
}

func BenchmarkTypeScriptAwait(b *testing.B) {
	node, folder, _ := typescriptProject(b)
	needNodePostgres(b, node)
	if err := os.WriteFile(filepath.Join(folder, "await.mjs"), []byte(`
import { createRequire } from "node:module";
import { fromPg, Results } from "@agent-drainer/client";
const pool = new (createRequire(import.meta.url)("pg").Pool)({ connectionString: process.argv[2] });
const results = new Results(fromPg(pool));
await Promise.all(Array.from({ length: 1003 }, async (_, n) => {
  const done = await results.wait(String(n + 1), { timeout: 120_000 });
  process.stdout.write((n + 1) + " " + done.status + "\n");
}));
process.exit(0);
`), 0o600); err != nil {
		b.Fatal(err)
	}
	benchmarkAwait(b, func(url string) *exec.Cmd {
		command := exec.CommandContext(b.Context(), node, "await.mjs", url)
		command.Dir = folder
		command.Env = append(os.Environ(), nodePath())
		return command
	})
}

// benchmarkAwait measures the time from the commit that settles an intent to the moment at which a program reports
// it. Of a thousand intents, ten settle every ten milliseconds.
func benchmarkAwait(b *testing.B, program func(url string) *exec.Cmd) {
	server, err := throwaway.Start(b.Context(), throwaway.WithSettings(map[string]string{"fsync": "on", "synchronous_commit": "on"}))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	if _, err := migrations.Up(b.Context(), server.URL); err != nil {
		b.Fatal(err)
	}
	db := drainertest.Connect(b, server.URL)
	for b.Loop() {
		drainertest.Exec(b, db, `TRUNCATE outbox.intent, outbox.queue, outbox.attempt, outbox.waiter RESTART IDENTITY`)
		drainertest.Exec(b, db, `SELECT outbox.enqueue('r', 's' || n, 'p/o', 'b', '{}') FROM generate_series(1, 1003) n`)
		command := program(server.URL + "&application_name=waits")
		command.Stderr = os.Stderr
		output, err := command.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := command.Start(); err != nil {
			b.Fatal(err)
		}
		told := make(chan int, 1003)
		go func() {
			defer close(told)
			for lines := bufio.NewScanner(output); lines.Scan(); {
				var intent int
				if n, _ := fmt.Sscanf(lines.Text(), "%d completed", &intent); n == 1 {
					told <- intent
				}
			}
		}()
		settle := func(first, last int) {
			drainertest.Exec(b, db, `WITH gone AS (DELETE FROM outbox.queue WHERE intent_id BETWEEN $1 AND $2 RETURNING intent_id)
				INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, started_at) SELECT intent_id, 1, 'saga', 'test', 'completed', now() FROM gone`, first, last)
		}
		drainertest.Eventually(b, "it waits", func() bool {
			return drainertest.Value[bool](b, db, `SELECT EXISTS (SELECT FROM outbox.waiter WHERE until > clock_timestamp())`)
		})
		for intent := 1001; intent <= 1003; intent++ { // it listens when these are reported
			settle(intent, intent)
			<-told
		}
		woke := make(chan map[int]time.Time)
		go func() {
			at := map[int]time.Time{}
			for intent := range told {
				at[intent] = time.Now()
			}
			woke <- at
		}()
		settled := map[int]time.Time{}
		tick := time.NewTicker(10 * time.Millisecond)
		for first := 1; first <= 1000; first += 10 {
			<-tick.C
			settle(first, first+9)
			for intent := first; intent < first+10; intent++ {
				settled[intent] = time.Now()
			}
		}
		connections := drainertest.Value[int](b, db, `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'waits'`)
		at := <-woke
		if err := command.Wait(); err != nil || len(at) != 1000 {
			b.Fatalf("%d of 1000 waits ended: %v", len(at), err)
		}
		var took []float64
		for intent, end := range settled {
			took = append(took, max(0, float64(at[intent].Sub(end))/1e6))
		}
		slices.Sort(took)
		b.ReportMetric(took[500], "wake-p50-ms")
		b.ReportMetric(took[990], "wake-p99-ms")
		b.ReportMetric(float64(connections), "connections")
	}
	b.ReportMetric(0, "ns/op")
}
