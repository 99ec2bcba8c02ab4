package integration_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestARowOfAnUnknownOperationWaitsAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/misspelt", 0, 1)
	w.enqueue("sim/act", 1, 2)
	start(t, w.setup(dispatch.KeyIdempotent, patientLease))
	w.awaitCount("completed", 1)
	drainertest.Eventually(t, "the unknown one is released", func() bool {
		return stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'released' AND error = 'unconfigured_tool'`) == 1
	})
	if wait := stored[float64](w, `SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM outbox.queue WHERE tries = 0`); wait < 30 {
		t.Errorf("it is due again in %.1f s; want it to wait for another worker", wait)
	}
	w.assertOneEffectEach()
}

func TestARowOfAnUnconfiguredProviderStaysUntouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("nobody/act", 0, 1)
	w.enqueue("sim/act", 1, 2)
	daemon := start(t, w.setup(dispatch.KeyIdempotent, patientLease))
	w.awaitCount("completed", 1)
	if code := daemon.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if untouched := stored[int](w, `SELECT count(*) FROM outbox.queue WHERE provider = 'nobody' AND attempt = 0`); untouched != 1 {
		t.Error("the row was touched")
	}
	drainertest.AssertInvariant(t, w.db)
}

func TestALaneThatHangsDoesNotStopAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(string, int) dispatchtest.Fault { return dispatchtest.HangBefore })
	healthy, healthyURL := dispatchtest.NewProvider(t, nil)
	w.enqueue("sim/act", 0, 50)
	w.enqueue("healthy/act", 50, 550)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	other := w.sim(dispatch.KeyIdempotent)
	other.Name, other.BaseURL = "healthy", healthyURL
	with.Providers = append(with.Providers, other)
	start(t, with)
	w.awaitCount("completed", 500)
	if audit := healthy.Ledger.Audit(); audit.TotalEffects() != 500 || audit.DuplicateEffects() != 0 {
		t.Errorf("%d effects, %d of them twice", audit.TotalEffects(), audit.DuplicateEffects())
	}
	if effects := w.provider.Ledger.Audit().TotalEffects(); effects != 0 {
		t.Errorf("the hanging provider had %d effects", effects)
	}
	w.provider.Release()
	w.awaitCount("completed", 550)
}

func TestARowThatIsNotDueYetIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const later = 2 * time.Second
	due := stored[time.Time](w, `WITH e AS (SELECT * FROM outbox.enqueue('run', 'step', 'sim/act', 'scope', '{}', now() + $1::float8 * interval '1 second'))
		SELECT now() + $1::float8 * interval '1 second' FROM e`, later.Seconds())
	start(t, w.setup(dispatch.KeyIdempotent, patientLease))
	w.awaitCount("completed", 1)
	if started := stored[time.Time](w, `SELECT started_at FROM outbox.attempt`); started.Before(due) {
		t.Errorf("sent %s too early", due.Sub(started))
	}
}
