package integration_test

import (
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/pgproxy"

	"github.com/agentoutbox/drainer/drainertest"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const waits = `SELECT count(*) = 1 FROM outbox.provider WHERE name = 'sim' AND idle_until > now() + interval '1 second'`

func TestAnIdleLaneIsWokenByAnEnqueue(t *testing.T) {
	t.Parallel()
	const pickUps = 15
	w := newWorld(t, nil)
	line := pgproxy.New(t, w.url)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.DatabaseURL = line.Behind(t, w.url)
	start(t, with)
	delays := w.pickUps(pickUps)
	drainertest.Eventually(t, "each enqueue of an idle lane is heard of", func() bool { return line.Heard.Load() >= pickUps })
	// Polling alone would take 125 ms at the median.
	if median := delays[len(delays)/2]; median > 90*time.Millisecond {
		t.Errorf("the median pick-up took %s: polling found the rows", median)
	}
}

func TestPollingAloneFindsEveryRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	line := pgproxy.New(t, w.url)
	line.Muted.Store(true)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.DatabaseURL = line.Behind(t, w.url)
	start(t, with)
	w.pickUps(5)
	w.awaitCount("completed", 5)
	w.assertOneEffectEach()
}

func TestADaemonBehindAPoolerWithoutPreparedStatementsDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dispatchtest.Script(dispatchtest.Unavailable))
	w.enqueue("sim/act", 0, 50)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	pooled, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	query := pooled.Query()
	query.Set("default_query_exec_mode", "exec")
	pooled.RawQuery = query.Encode()
	with.DatabaseURL = pooled.String()
	daemon := start(t, with)
	w.awaitCount("completed", 50)
	w.assertOneEffectEach()
	if code := daemon.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// pickUps enqueues rows one by one while the lane waits, and returns the
// sorted times from commit to request.
func (w *world) pickUps(n int) (delays []time.Duration) {
	w.t.Helper()
	for i := range n {
		w.awaitCount("completed", i)
		drainertest.Eventually(w.t, "the lane waits for rows", func() bool { return stored[bool](w, waits) })
		w.enqueue("sim/act", i, i+1)
		committed := time.Now()
		w.awaitRequests(i + 1)
		delays = append(delays, time.Since(committed))
	}
	slices.Sort(delays)
	return delays
}
