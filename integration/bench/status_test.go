package bench_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

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
