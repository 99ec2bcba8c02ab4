package operator_test

import (
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func TestTheOverviewTellsWhyAProviderIsNotSentTo(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.provider (name, paused, state, open_until) VALUES
		('half', false, 'half_open', now() - interval '1 second'), ('open', false, 'open', now() + interval '1 hour'), ('paused', true, 'closed', NULL)`)
	o.exec(`SELECT FROM outbox.enqueue('run', 'step', 'nobody/act', 'scope', '{}')`)

	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]operator.ProviderOverview{}
	for _, provider := range overview.Providers {
		found[provider.Provider] = provider
	}
	for provider, want := range map[string]struct {
		paused  bool
		breaker string
		least   float64 // seconds
		most    float64
	}{
		"sim":    {false, "closed", -1, -1},
		"paused": {true, "closed", -1, -1},
		"open":   {false, "open", 3500, 3600},
		"half":   {false, "half_open", 0, 0},
		"nobody": {false, "", -1, -1},
	} {
		got := found[provider]
		breaker, openFor := "", -1.0
		if got.Breaker != nil {
			breaker = *got.Breaker
		}
		if got.OpenForSeconds != nil {
			openFor = *got.OpenForSeconds
		}
		if got.Provider == "" || got.Paused != want.paused || breaker != want.breaker || openFor < want.least || openFor > want.most {
			t.Errorf("%s: %+v, breaker %q, open for %.1f s; want %+v", provider, got, breaker, openFor, want)
		}
	}
}

// A claim that is far older than any dispatch has nobody left to recover it.
func TestTheOverviewTellsHowLongTheOldestClaimHasBeenInProgress(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 1)
	o.claim()
	o.exec(`UPDATE outbox.claim SET claimed_at = now() - interval '1 hour'`)
	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range overview.Providers {
		if hours := int(p.OldestInProgressAgeSeconds / 3600); (p.Provider == "sim") != (hours == 1) {
			t.Errorf("%s: the oldest claim is %v s old", p.Provider, p.OldestInProgressAgeSeconds)
		}
	}
}

func TestTheOverviewCountsWhatGoesBackAndWhatWantsAHuman(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	steps, _ := failedSaga(o, "failed")
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state) VALUES ('1', 'begun'), ('2', 'begun'), ('3', 'compensated'), ('4', 'resolved'), ('5', 'cancelled')`)
	// two incidents of one saga, one of them acknowledged; and one that is past
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, acknowledged_at, resolved_at) VALUES
		('reversal_window_expired', $1, 'doomed', now(), NULL), ('outcome_unknown', $1, '4', NULL, now()), ('key_collision', $1, '9', NULL, NULL)`, steps[0])
	overview, err := o.console().Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (operator.Attention{SagasBegun: 2, SagasFailed: 1, IncidentsOpen: 2}); overview.Attention != want {
		t.Errorf("%+v, want %+v", overview.Attention, want)
	}
}
