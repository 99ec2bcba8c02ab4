package integration_test

import (
	"context"
	"testing"

	"github.com/agentoutbox/drainer/integration/pgproxy"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

func TestOutcomesSurviveAnOutageLongerThanTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dispatchtest.Script(dispatchtest.HangAfter))
	w.enqueue("sim/act", 0, 1)
	with := w.setup(dispatch.NonIdempotent, shortLease)
	with.PauseAt = afterReply
	line := pgproxy.New(t, w.url)
	with.DatabaseURL = line.Behind(t, w.url)
	daemon := start(t, with)
	w.awaitEffects(1)
	w.provider.Release()
	daemon.awaitPause() // the outcome is known, and nobody but this process knows it

	joined := daemon.logged(joinedLine)
	line.TakeDown()
	daemon.resume()
	drainertest.Eventually(t, "the turn fails", func() bool { return daemon.logged("turn failed") == 1 })
	drainertest.Eventually(t, "the lease is over", func() bool {
		return stored[bool](w, `SELECT beat_at < now() - interval '3.5 seconds' FROM outbox.worker`)
	})
	if got := w.count("in_progress"); got != 1 {
		t.Fatalf("%d intents in progress during the outage, want 1", got)
	}
	line.BringUp()

	w.awaitCount("completed", 1)
	w.assertHistory("completed")
	drainertest.Eventually(t, "the daemon starts over", func() bool { return daemon.logged(joinedLine) > joined })
	w.enqueue("sim/act", 1, 2)
	w.awaitCount("completed", 2)
	w.assertOneEffectEach()
	if turns := daemon.logged("cannot join yet") + daemon.logged("turn failed"); turns > 20 {
		t.Errorf("%d failures in a short outage: a tight loop", turns)
	}
}

func TestDaemonsWhosePostgresCrashesDrainEverythingOnce(t *testing.T) {
	t.Parallel()
	const intents = 3000
	server, err := throwaway.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	w := worldAt(t, server.URL, nil)
	w.enqueue("sim/act", 0, intents)
	with := w.setup(dispatch.KeyIdempotent, shortLease)
	daemons := []*daemon{start(t, with), start(t, with)}
	for _, effects := range []int{intents / 4, intents / 2, intents * 3 / 4} {
		w.awaitEffects(effects)
		if err := server.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.db.Reset()
		drainertest.AssertInvariant(t, w.db)
	}
	w.awaitCount("completed", intents)
	w.assertOneEffectEach()
	for _, daemon := range daemons {
		if failures := daemon.logged("turn failed"); failures > 6 {
			t.Errorf("%d spells of failing turns in 3 crashes", failures)
		}
		if code := daemon.terminate(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	w.assertNoClaims()
}

func TestALostCommitReplyLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	const intents, cuts = 400, 5
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, intents)
	line := pgproxy.New(t, w.url)
	line.Cuts.Store(cuts)
	with := w.setup(dispatch.KeyIdempotent, patientLease)
	with.DatabaseURL = line.Behind(t, w.url)
	daemon := start(t, with)
	w.awaitCount("completed", intents)
	w.assertOneEffectEach()
	if left := line.Cuts.Load(); left > 0 {
		t.Errorf("only %d of %d replies were lost", cuts-left, cuts)
	}
	if given := stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'released' AND error = 'reply_lost'`); given == 0 {
		t.Error("no forgotten claim was given back")
	}
	if lost := stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'lost'`); lost != 0 {
		t.Errorf("%d rows were lost, though their worker lived", lost)
	}
	if requests := w.provider.Ledger.Audit().TotalRequests(); requests != intents {
		t.Errorf("%d requests of %d intents", requests, intents)
	}
	if refused := daemon.logged(lateOutcome); refused != 0 {
		t.Errorf("%d settlements were taken for late ones", refused)
	}
	if code := daemon.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.assertNoClaims()
}
