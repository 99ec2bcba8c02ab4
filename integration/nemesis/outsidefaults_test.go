package nemesis_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

var outside = hand{name: "outside", before: 600 * time.Millisecond, deck: []fault{
	{name: "provider outage", cards: 2, inject: outage},
	{name: "pager down", cards: 1, inject: pagerDown},
	{name: "provider paused", cards: 1, inject: paused},
	{name: "run cancelled", cards: 2, inject: runCancelled},
	{name: "run taken back", cards: 1, inject: runTakenBack},
	{name: "intent retried", cards: 2, inject: intentRetried},
	{name: "intent cancelled", cards: 1, lucky: true, inject: intentCancelled},
	{name: "saga retried", cards: 2, lucky: true, inject: sagaRetried},
	{name: "incident acknowledged", cards: 1, inject: incidentAcknowledged},
}}

// outage is one in which every request meets the same end.
func outage(ctx context.Context, a *arena, random *rand.Rand) error {
	ends := []dispatchtest.Fault{
		dispatchtest.Unavailable, dispatchtest.OverloadedFor, dispatchtest.ErrorBefore,
		dispatchtest.DropBefore, dispatchtest.DropAfter, dispatchtest.Slow,
	}
	a.provider.outage.Store(&ends[random.IntN(len(ends))])
	defer a.provider.outage.Store(nil)
	linger(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	return nil
}

func pagerDown(ctx context.Context, a *arena, random *rand.Rand) error {
	a.pager.down.Store(true)
	defer a.pager.down.Store(false)
	linger(ctx, between(random, time.Second, 2*time.Second))
	return nil
}

func paused(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.pause(random, func(string) error {
		linger(ctx, between(random, 500*time.Millisecond, 2*time.Second))
		return nil
	})
}

// intentCancelled pauses the provider first, so that there is something that waits.
func intentCancelled(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.pause(random, func(provider string) error {
		intent, err := a.oneOf(ctx, random, `SELECT intent_id FROM outbox.queue WHERE NOT lookup AND NOT maybe_applied AND provider = $1 LIMIT 20`, provider)
		if err != nil {
			return err
		}
		return a.operator.does("intents", "cancel", intent)
	})
}

var providers = []string{"keyed", "set", "once", "asked", "shop", "refunds"}

// pause shuts a provider for as long as meanwhile takes.
func (a *arena) pause(random *rand.Rand, meanwhile func(provider string) error) error {
	provider := providers[random.IntN(len(providers))]
	if err := a.operator.does("providers", "pause", provider); err != nil {
		return err
	}
	defer a.operator.insists("providers", "resume", provider)
	return meanwhile(provider)
}

func runCancelled(_ context.Context, a *arena, random *rand.Rand) error {
	return a.operator.does("runs", "cancel", a.agents.recentRun(random))
}

func runTakenBack(_ context.Context, a *arena, random *rand.Rand) error {
	return a.operator.does("runs", "cancel", a.agents.recentRun(random), "--compensate")
}

func intentRetried(ctx context.Context, a *arena, random *rand.Rand) error {
	intent, err := a.oneOf(ctx, random, `SELECT intent_id FROM outbox.status WHERE status = 'unknown' AND finished_at IS NOT NULL ORDER BY intent_id DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("intents", "retry", intent, "--may-duplicate", "--config", a.Config)
}

func sagaRetried(ctx context.Context, a *arena, random *rand.Rand) error {
	run, err := a.oneOf(ctx, random, `SELECT agent_run_id FROM outbox.saga WHERE state = 'compensation_failed' ORDER BY begun_at DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("sagas", "retry", run)
}

func incidentAcknowledged(ctx context.Context, a *arena, random *rand.Rand) error {
	incident, err := a.oneOf(ctx, random, `SELECT id FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL ORDER BY id DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("incidents", "ack", incident)
}
