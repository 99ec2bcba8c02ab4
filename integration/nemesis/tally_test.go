package nemesis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/history"
)

// tally is how much happened.
type tally struct {
	Intents, Effects, Retries, Unknown, Unheard, Sagas, Compensated, Undone int
}

func tallyOf(accounts history.Accounts) tally {
	counts := tally{Intents: len(accounts.Intents), Effects: len(accounts.Effects), Sagas: len(accounts.Sagas)}
	for _, answer := range accounts.Answers {
		if answer == history.Unheard {
			counts.Unheard++
		}
	}
	for _, state := range accounts.Sagas {
		if state == "compensated" {
			counts.Compensated++
		}
	}
	for _, intent := range accounts.Intents {
		if intent.Undoes != 0 && intent.Status == "completed" {
			counts.Undone++
		}
	}
	unknown := map[int64]bool{}
	for _, transition := range accounts.Transitions {
		switch {
		case transition.Place != "attempt" || strings.HasPrefix(transition.Worker, "operator:"):
		case transition.Status == "unknown":
			unknown[transition.IntentID] = true
		case transition.Status == "pending":
			counts.Retries++
		}
	}
	counts.Unknown = len(unknown)
	return counts
}

// assertEventful fails a run in which too little happened to break.
func (c tally) assertEventful(t testing.TB, lasted time.Duration) {
	t.Helper()
	t.Logf("%+v", c)
	seconds := int(lasted / time.Second)
	for what, count := range map[string]struct{ is, least int }{
		"effects":           {c.Effects, 2 * seconds},
		"retries":           {c.Retries, seconds},
		"unknown intents":   {c.Unknown, seconds / 20},
		"compensated sagas": {c.Compensated, seconds / 10},
		"undone steps":      {c.Undone, seconds / 20},
	} {
		if count.is < count.least {
			t.Errorf("%d %s in %s, want at least %d: the run shows too little", count.is, what, lasted, count.least)
		}
	}
}
