package faults_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// outage fails every request as long as it lasts.
func outage(as dispatchtest.Fault) (plan dispatchtest.Plan, over *atomic.Bool) {
	over = new(atomic.Bool)
	return func(string, int) dispatchtest.Fault {
		if over.Load() {
			return dispatchtest.None
		}
		return as
	}, over
}

// It lasts for more requests than the rows have tries.
func TestAnOutageUsesUpNoTries(t *testing.T) {
	t.Parallel()
	const (
		intents = 4
		tries   = 3
	)
	plan, over := outage(dispatchtest.Unavailable)
	w := world.New(t, plan)
	w.Reconfigure(func(config string) string {
		config = strings.ReplaceAll(patient(config), "max_attempts: 50", "max_attempts: 3")
		return strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {cool_down: 1ms}\n")
	})
	w.Start()
	w.Enqueue(world.Keyed, intents)
	drainertest.Eventually(t, "the provider is tried often", func() bool { return w.Provider.Ledger.Audit().TotalRequests() > intents*tries+5 })
	left := w.Count(`SELECT count(*) FROM outbox.status WHERE status IN ('pending', 'in_progress')`)
	over.Store(true)
	w.AwaitRest()

	fault.Injected(t, 51, w.Provider.Ledger.Audit().Faults[dispatchtest.Unavailable])
	if left != intents {
		t.Errorf("%d of %d intents have a try left", left, intents)
	}
	w.Check()
}

// A provider that refuses everything for the same minute gets no wave after it:
// retries are due at times that are spread over the backoff.
func TestWhatFailsAtOnceIsTriedAgainAtManyTimes(t *testing.T) {
	t.Parallel()
	const (
		intents = 1000
		bins    = 20
	)
	w := world.New(t, dispatchtest.Always(dispatchtest.ThrottleFor))
	w.Reconfigure(func(config string) string {
		return strings.ReplaceAll(patient(config), "base: 20ms, cap: 200ms", "base: 10m, cap: 1h")
	})
	w.Start()
	w.Start()
	w.Enqueue(world.Keyed, intents)
	w.AwaitCount("all are refused", intents, `SELECT count(*) FROM outbox.attempt`)
	fault.Injected(t, 36, w.Provider.Ledger.Audit().Faults[dispatchtest.ThrottleFor])

	fullest := w.Count(`
		SELECT max(retries) FROM (
		  SELECT count(*) AS retries FROM outbox.attempt GROUP BY width_bucket(
		    extract(epoch FROM next_attempt_at - finished_at)::float8, 1, 601, $1)) bin`, bins)
	if even := intents / bins; fullest > 2*even {
		t.Errorf("%d of %d retries are due in one of %d parts of the backoff, want about %d in each", fullest, intents, bins, even)
	}
	if early := w.Count(`SELECT count(*) FROM outbox.attempt WHERE next_attempt_at < finished_at + make_interval(secs => retry_after_seconds)`); early > 0 {
		t.Errorf("%d retries are due before their Retry-After is over", early)
	}
}
