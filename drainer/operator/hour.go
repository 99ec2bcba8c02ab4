package operator

import (
	"context"
	_ "embed"
	"math"
	"time"
)

//go:embed sql/hour.sql
var hourSQL string

// Minute has attempts by how they ended, and how old the oldest due row was at most. All
// are nil where no daemon wrote the minute.
type Minute struct {
	At        time.Time `json:"at"`
	Completed *int64    `json:"completed"`
	Refused   *int64    `json:"refused"`
	Busy      *int64    `json:"busy"`
	InDoubt   *int64    `json:"in_doubt"`
	Oldest    *float64  `json:"oldest_due_age_seconds"`
}

// Hour lists the last 60 whole minutes of a provider, or of all together if provider is empty.
func (c *Console) Hour(ctx context.Context, provider string) ([]Minute, error) {
	return collect[Minute](ctx, c, hourSQL, provider)
}

// Latency has percentiles of how long attempts took in the last hour. Each is the upper end of
// its bucket, and so may be up to twice what was measured.
type Latency struct {
	Attempts int64   `json:"attempts"`
	P50      float64 `json:"p50_seconds"`
	P95      float64 `json:"p95_seconds"`
	P99      float64 `json:"p99_seconds"`
}

// Latency is that of a provider.
func (c *Console) Latency(ctx context.Context, provider string) (l Latency, err error) {
	counts, err := collect[struct{ Rows int64 }](ctx, c, `SELECT sum(t.rows)::bigint
		FROM outbox.minute m CROSS JOIN LATERAL pg_catalog.unnest(m.took) WITH ORDINALITY AS t (rows, bucket)
		WHERE m.provider = $1::text AND m.at >= now() - interval '61 minutes' GROUP BY t.bucket ORDER BY t.bucket`, provider)
	for _, bucket := range counts {
		l.Attempts += bucket.Rows
	}
	at := func(share float64) float64 {
		below := int64(0)
		for i, bucket := range counts {
			if below += bucket.Rows; below > 0 && float64(below) >= share*float64(l.Attempts) {
				return 0.001 * math.Pow(2, float64(i))
			}
		}
		return 0
	}
	l.P50, l.P95, l.P99 = at(0.5), at(0.95), at(0.99)
	return l, err
}

// BreakerChange is one change of the circuit breaker of a provider, or of one of its operations.
type BreakerChange struct {
	Name      string    `json:"provider"` // or provider/operation
	State     string    `json:"state"`
	Reason    *string   `json:"reason"`
	ChangedAt time.Time `json:"changed_at"`
}

// BreakerChanges lists those of a provider and of its operations, the newest first.
func (c *Console) BreakerChanges(ctx context.Context, provider string, limit int) ([]BreakerChange, error) {
	return collect[BreakerChange](ctx, c, `SELECT name, state, reason, changed_at FROM outbox.breaker_change
		WHERE name = $1::text OR starts_with(name, $1::text || '/'::text) ORDER BY id DESC LIMIT $2::int`, provider, limit)
}
