package nemesis_test

import (
	"context"
	"time"
)

const every = 10 * time.Second

// report says now and then where things stand.
func (a *arena) report(ctx context.Context, gauge *gauge) {
	effects := 0
	for ctx.Err() == nil {
		linger(ctx, every)
		before := effects
		effects = a.Provider.Ledger.Audit().TotalEffects()
		left, err := a.left(ctx)
		if ctx.Err() != nil {
			return
		}
		standing := "no answer from the database"
		if err == nil {
			standing = left.String()
		}
		a.t.Logf("%5s: %d effects (%.1f a second), %d faults, %s, at most %d MiB",
			a.chronicle.elapsed(), effects, float64(effects-before)/every.Seconds(), a.chronicle.total(), standing, gauge.mostMiB())
	}
}
