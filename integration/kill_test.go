package integration_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// moment is when a daemon is killed, and what the provider has seen by then.
type moment struct {
	name     string
	pauseAt  pausePoint
	plan     dispatchtest.Plan
	requests int
	effects  int
}

var moments = []moment{
	{"between claim and send", beforeSend, nil, 0, 0},
	{"between send and effect", nowhere, dispatchtest.Script(dispatchtest.HangBefore), 1, 0},
	{"between effect and reply", nowhere, dispatchtest.Script(dispatchtest.HangAfter), 1, 1},
	{"between reply and settle", afterReply, nil, 1, 1},
}

// killAt lets a daemon come to the moment with one intent, and kills it there.
func killAt(t *testing.T, m moment, class dispatch.Class) *world {
	t.Helper()
	w := newWorld(t, m.plan)
	w.enqueue("sim/act", 0, 1)
	with := w.setup(class, shortLease)
	with.PauseAt = m.pauseAt
	victim := start(t, with)
	if m.pauseAt != nowhere {
		victim.awaitPause()
	}
	w.awaitRequests(m.requests)
	w.awaitEffects(m.effects)
	victim.kill()
	if got := w.count("in_progress"); got != 1 {
		t.Fatalf("%d intents in progress after the kill, want 1", got)
	}
	drainertest.AssertInvariant(t, w.db)
	w.provider.Release()
	return w
}

func TestAKilledDaemonsRowIsRecoveredWithOneEffect(t *testing.T) {
	t.Parallel()
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := killAt(t, m, dispatch.KeyIdempotent)
			start(t, w.setup(dispatch.KeyIdempotent, shortLease))
			w.awaitCount("completed", 1)
			w.assertOneEffectEach()
			w.assertNoClaims()
			if got := w.history(); got[0] != "lost" || !slices.Contains(got, "completed") {
				t.Errorf("attempts ended %v, want lost first and completed last", got)
			}
		})
	}
}

func TestAKilledDaemonsRowIsNeverSentAgainIfThatWouldDoubleIt(t *testing.T) {
	t.Parallel()
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := killAt(t, m, dispatch.NonIdempotent)
			start(t, w.setup(dispatch.NonIdempotent, shortLease))
			w.awaitCount("unknown", 1)
			w.assertHistory("lost")
			w.assertNoClaims()
			w.enqueue("sim/act", 1, 2) // it drains on, and what comes later passes what is settled
			w.awaitCount("completed", 1)
			if got := w.provider.Ledger.Audit().TotalRequests(); got != m.requests+1 {
				t.Errorf("%d requests, want %d and the later one", got, m.requests)
			}
		})
	}
}

func TestARowThatKillsEveryDaemonEndsAtMaxAttempts(t *testing.T) {
	t.Parallel()
	const maxAttempts = 3
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 1)
	with := w.setup(dispatch.KeyIdempotent, shortLease)
	with.PauseAt = beforeSend
	with.Providers[0].MaxAttempts = maxAttempts
	for range maxAttempts {
		victim := start(t, with)
		victim.awaitPause()
		victim.kill()
		fault.Injected(t, 14, 1)
	}
	start(t, with)
	w.awaitCount("unknown", 1)
	w.assertHistory("lost", "lost", "lost")
	drainertest.AssertInvariant(t, w.db)
}

func TestADeadWorkersRowsAreRecoveredByRunningOnce(t *testing.T) {
	t.Parallel()
	w := killAt(t, moment{name: "between claim and send", pauseAt: beforeSend}, dispatch.NonIdempotent)
	if _, err := w.db.Exec(t.Context(), `UPDATE outbox.worker SET beat_at = now() - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	provider, err := w.sim(dispatch.NonIdempotent).build(func(adapter dispatch.Adapter) dispatch.Adapter { return adapter })
	if err != nil {
		t.Fatal(err)
	}
	drainOnce(t, w.url, provider)
	w.assertHistory("lost")
	w.assertNoClaims()
}
