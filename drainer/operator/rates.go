package operator

import (
	"context"
	"fmt"
	"time"
)

// Rates are per second, over all providers. They come from Postgres's own
// counters, which cost nothing to read and lag behind by some seconds; rows of
// transactions that were rolled back count too.
type Rates struct {
	Enqueued float64 `json:"enqueued_per_second"`
	Attempts float64 `json:"attempts_per_second"`
	Settled  float64 `json:"settled_per_second"` // completed, or ended otherwise
}

// Counters are how many rows were ever inserted.
type Counters struct {
	intents, queued, attempts int64
	at                        time.Time
}

const countersSQL = `
	SELECT coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'intent'), 0)::bigint,
		coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'queue'), 0)::bigint,
		coalesce(sum(n_tup_ins) FILTER (WHERE relname = 'attempt'), 0)::bigint,
		clock_timestamp()
	FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname IN ('intent', 'queue', 'attempt')`

// Counters reads them.
func (c *Console) Counters(ctx context.Context) (now Counters, err error) {
	err = c.conn.QueryRow(ctx, countersSQL).Scan(&now.intents, &now.queued, &now.attempts, &now.at)
	if err != nil {
		return now, fmt.Errorf("read the counters: %w", err)
	}
	return now, nil
}

// Since compares two readings. What was queued and is no new intent was put
// back, and so every attempt that put nothing back settled.
func (c Counters) Since(earlier Counters) Rates {
	seconds := c.at.Sub(earlier.at).Seconds()
	if seconds <= 0 {
		return Rates{}
	}
	intents, queued, attempts := c.intents-earlier.intents, c.queued-earlier.queued, c.attempts-earlier.attempts
	rate := func(n int64) float64 { return float64(max(n, 0)) / seconds } // somebody may reset them
	return Rates{Enqueued: rate(intents), Attempts: rate(attempts), Settled: rate(attempts - (queued - intents))}
}
