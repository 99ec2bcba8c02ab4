package drainer

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// reclaim gives back rows that a turn claimed without its reply arriving. Only
// the lane itself may do so, between turns, when it knows what it remembers.
func (l *lane) reclaim(life lifetimes) error {
	if !l.mayReclaim() {
		return nil
	}
	ctx, cancel := context.WithTimeout(life.giveUp, turnTimeout)
	defer cancel()
	given, err := l.claims.Reclaim(ctx, l.worker, l.provider, l.server.provider.Name, slices.Collect(maps.Keys(l.remembered)), l.forget)
	if err != nil {
		return err
	}
	if len(given) > 0 {
		l.log.Warn("gave back rows whose claim's reply was lost", "rows", len(given))
		l.scan.owe()
	}
	l.reclaimAt = time.Now().Add(reclaimInterval)
	return nil
}

// mayReclaim keeps rows that a turn under way has claimed: it has not lost them.
// mayBegin does not rule that out, for it looked at an earlier time.
func (l *lane) mayReclaim() bool {
	return !l.pending.any() && (l.failures > 0 || l.reclaimIsDue())
}

func (l *lane) reclaimIsDue() bool { return !time.Now().Before(l.reclaimAt) }

// forget gives back a row whose claim this lane never heard of. It may have
// been claimed as the probe: then the turn to try the provider passes on.
func (l *lane) forget(row *Row) (Settlement, bool) {
	row.Probe = l.probes == 0
	return l.withdraw(row, l.untilAnswerable(row), "reply_lost"), true
}

// untilAnswerable makes a question wait for the last send: the claim that was lost may
// be what made one of the row, because its run goes back, and its reply would have had
// it wait.
func (l *lane) untilAnswerable(row *Row) time.Duration {
	if _, policy, configured := l.route(row); configured && row.Lookup && policy.Lookup != nil {
		return policy.UntilDrained(row.History(time.Time{}, time.Now()))
	}
	return 0
}

// backOff waits out a failing database. Outcomes keep arriving meanwhile, and
// wait until a turn confirms them.
func (l *lane) backOff(life lifetimes) {
	err := l.failed
	l.failed = nil
	l.failures++
	l.prefetch = 0 // the next turn must not fail for being as large
	if l.failures == 1 && !errors.Is(err, context.Canceled) {
		l.log.Warn("turn failed; retrying with backoff, outcomes are kept", "error", err)
	}
	pause(life.giveUp, databaseBackoff.Delay(l.failures, databaseBackoff.Base/2, rand.Float64()))
}
