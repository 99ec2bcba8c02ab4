package dispatch_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/fault"
)

const almostOne = 1 - 1.0/(1<<53)

func TestTheCeilingDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: 500 * time.Millisecond, Cap: 10 * time.Second}
	ceilings := map[int]time.Duration{
		1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second,
		5: 8 * time.Second, 6: 10 * time.Second, 7: 10 * time.Second, 1e9: 10 * time.Second,
	}
	fault.Injected(t, 35, len(ceilings))
	for try, want := range ceilings {
		if got := backoff.Delay(try, 0, almostOne); got > want || got < want-time.Microsecond {
			t.Errorf("try %d: %s, want just under %s", try, got, want)
		}
		if got := backoff.Delay(try, 0, 0); got != 0 {
			t.Errorf("try %d without luck: %s, want 0", try, got)
		}
	}
}

// Doubling a cap for ever would overflow, and every second try would wait for ever.
func TestTheFirstTriesWaitNoLongerUnderACapForEver(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: time.Second, Cap: math.MaxInt64}
	for try, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second} {
		if got := backoff.Delay(try, 0, almostOne); got > want || got < want-time.Microsecond {
			t.Errorf("try %d: %s, want just under %s", try, got, want)
		}
	}
}

func TestNoTryWaitsLongerThanTheCapNorLessThanNothing(t *testing.T) {
	t.Parallel()
	lengths := []time.Duration{1, time.Millisecond, time.Hour, math.MaxInt64/2 + 1, math.MaxInt64}
	for try := 1; try <= 1e9; try *= 10 {
		for _, try := range []int{try - 1, try, 3 * try, 6*try + 4} {
			for _, base := range lengths {
				for _, limit := range lengths {
					for _, fraction := range []float64{0, 0.5, almostOne} {
						if got := (dispatch.Backoff{Base: base, Cap: limit}).Delay(try, 0, fraction); got < 0 || got > limit {
							t.Errorf("try %d, base %s, cap %s, %v: %s", try, base, limit, fraction, got)
						}
					}
				}
			}
		}
	}
}

func TestAnEmptyBackoffDoesNotWaitOrSpin(t *testing.T) {
	t.Parallel()
	for _, backoff := range []dispatch.Backoff{{}, {Cap: time.Hour}, {Base: time.Second}} {
		if got := backoff.Delay(math.MaxInt, 0, almostOne); got != 0 {
			t.Errorf("%+v: %s, want 0", backoff, got)
		}
	}
}

func TestRetryAfterIsAFloor(t *testing.T) {
	t.Parallel()
	backoff := dispatch.Backoff{Base: time.Second, Cap: time.Minute}
	for _, test := range []struct {
		retryAfter time.Duration
		fraction   float64
		want       time.Duration
	}{
		{30 * time.Second, 0, 30 * time.Second},
		{30 * time.Second, 0.5, 30*time.Second + 500*time.Millisecond},
		{-time.Hour, 0.5, 500 * time.Millisecond},
		{math.MaxInt64, 0.5, math.MaxInt64},
	} {
		if got := backoff.Delay(1, test.retryAfter, test.fraction); got != test.want {
			t.Errorf("Retry-After %s: %s, want %s", test.retryAfter, got, test.want)
		}
	}
}

func TestDelayStaysBetweenRetryAfterAndItsCeiling(t *testing.T) {
	t.Parallel()
	delays := 0
	rapid.Check(t, func(t *rapid.T) {
		backoff := dispatch.Backoff{
			Base: time.Duration(rapid.Int64().Draw(t, "base")),
			Cap:  time.Duration(rapid.Int64().Draw(t, "cap")),
		}
		try := rapid.IntRange(1, 1e9).Draw(t, "try")
		retryAfter := time.Duration(rapid.Int64().Draw(t, "retryAfter"))
		fraction := rapid.Float64Range(0, almostOne).Draw(t, "fraction")

		floor := max(retryAfter, 0)
		got := backoff.Delay(try, retryAfter, fraction)
		if got < floor {
			t.Fatalf("%s is before the floor %s", got, floor)
		}
		if jitter := got - floor; jitter > max(backoff.Cap, 0) {
			t.Fatalf("jitter %s is over the cap %s", jitter, backoff.Cap)
		}
		if jitter := backoff.Delay(1, 0, fraction); jitter > max(backoff.Base, 0) {
			t.Fatalf("jitter %s of the first try is over the base %s", jitter, backoff.Base)
		}
		delays++
	})
	fault.Injected(t, 35, delays)
}

func TestDelayGrowsWithTheTry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		backoff := dispatch.Backoff{
			Base: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "base")),
			Cap:  time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "cap")),
		}
		try := rapid.IntRange(1, 100).Draw(t, "try")
		fraction := rapid.Float64Range(0, almostOne).Draw(t, "fraction")
		if earlier, later := backoff.Delay(try, 0, fraction), backoff.Delay(try+1, 0, fraction); earlier > later {
			t.Fatalf("try %d waits %s, the next only %s", try, earlier, later)
		}
	})
}
