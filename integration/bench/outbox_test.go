package bench_test

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// payload is an order of about 500 octets of JSON, as an expression over n.
const payload = `jsonb_build_object(
  'order', 'order-' || n, 'amount', n, 'currency', 'eur', 'capture', true, 'customer', 'customer-' || n % 5000,
  'items', jsonb_build_array(jsonb_build_object('sku', 'sku-' || n % 700, 'quantity', 1 + n % 3),
                             jsonb_build_object('sku', 'sku-' || n % 900, 'quantity', 1)),
  'note', repeat('Leave it at the door. ', 14))`

// payloadText is one such order.
var payloadText = `{"order": "order-1", "amount": 1, "currency": "eur", "capture": true, "customer": "customer-1", ` +
	`"items": [{"sku": "sku-1", "quantity": 2}, {"sku": "sku-1", "quantity": 1}], ` +
	`"note": "` + strings.Repeat("Leave it at the door. ", 14) + `"}`

// outbox is a database with the drainer's schema.
type outbox struct{ *database }

// enqueue spreads that many due intents over the providers. It fills the tables as
// the triggers would, in a tenth of the time. Their pages are written for the
// first time since a checkpoint, so what comes next logs no images of whole
// pages.
func (o *outbox) enqueue(rows int, providers ...provider) {
	o.b.Helper()
	var tools []string
	for _, provider := range providers {
		tools = append(tools, provider.act())
	}
	o.exec(`CHECKPOINT`)
	o.direct(func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `CREATE TEMP TABLE added ON COMMIT DROP AS SELECT max(id) AS before FROM outbox.intent`); err != nil {
			return err
		}
		if _, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
			SELECT 'run-' || (n + before) / 10, 'step-' || (n + before) % 10, ($2::text[])[1 + n % cardinality($2)], 'order-' || n, `+payload+`
			FROM generate_series(1, $1::int) n, (SELECT coalesce(before, 0) AS before FROM added) a`, rows, tools); err != nil {
			return err
		}
		_, err := tx.Exec(o.b.Context(), `
			INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id)
			SELECT provider, created_at, id, agent_run_id FROM outbox.intent WHERE id > (SELECT coalesce(before, 0) FROM added)`)
		return err
	})
}

// direct writes tables without their triggers, in one transaction.
func (o *outbox) direct(write func(pgx.Tx) error) {
	o.b.Helper()
	err := pgx.BeginFunc(o.b.Context(), o, func(tx pgx.Tx) error {
		if _, err := tx.Exec(o.b.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		return write(tx)
	})
	if err != nil {
		o.b.Fatalf("filling the outbox: %v", err)
	}
}

// now is the time by the database's clock.
func (o *outbox) now() time.Time {
	return read[time.Time](o.database, `SELECT clock_timestamp()`)
}

// attemptsPerSecond is from the first start to the last end, of the attempts
// that have ended since then.
func (o *outbox) attemptsPerSecond(since time.Time) float64 {
	o.b.Helper()
	return read[float64](o.database, `
		SELECT count(*) / extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM outbox.attempt
		WHERE outcome IN ('completed', 'throttled') AND finished_at > $1::timestamptz`, since)
}
