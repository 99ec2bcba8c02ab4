package row

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model is a tool, and what its rows' journey goes without.
type Model struct {
	Class   dispatch.Class
	Lookup  bool
	Batched bool // a first claim may hold another row beside this one
	Heard   bool // no reply of the database is lost
	Without Guards
}

const (
	maxAttempts  = 3
	keyTTL       = 24 * time.Hour
	timeout      = time.Minute
	margin       = time.Minute
	untilDrained = timeout + margin
)

// Tries of a lookup are counted no further than decisions depend on them: any
// may be the last, and that one is so late that nothing goes on after it.
const (
	LookupTries = maxAttempts
	LastTry     = 100
)

// Explored is what package explore searches.
func (m Model) Explored() explore.Model[State] {
	return explore.Model[State]{
		Start:      State{Queue: Queued{Is: true}},
		Steps:      m.steps,
		Properties: properties,
		Rests:      func(s State) bool { return s.Settled },
	}
}

func (m Model) keeps(guard Guards) bool { return m.Without&guard == 0 }

// Policy is what the engine believes of the tool.
func (m Model) Policy() dispatch.Policy {
	policy := dispatch.Policy{Class: m.Class, KeyTTL: keyTTL, MaxAttempts: maxAttempts, Timeout: timeout}
	if m.Lookup {
		policy.Lookup = &dispatch.Lookup{Operation: "find", Margin: margin}
	}
	if !m.keeps(DrainedLookup) {
		policy.Timeout, policy.Lookup = 0, &dispatch.Lookup{Operation: "find"}
	}
	if !m.keeps(TrueClass) {
		policy.Class = dispatch.NaturallyIdempotent
	}
	if !m.keeps(KeyLife) {
		policy.KeyTTL = 1000 * keyTTL
	}
	return policy
}

// decide asks the engine what follows from an attempt.
func (m Model) decide(past Past, began Age, outcome dispatch.Outcome) dispatch.Decision {
	history := past.history(began)
	history.MaybeApplied = history.MaybeApplied && m.keeps(StickyDoubt)
	return m.Policy().Decide(history, dispatch.Result{Outcome: outcome}, 0)
}

// history is what a lane makes of a claimed row, and of when its attempt began.
func (p Past) history(began Age) dispatch.History {
	history := dispatch.History{Tries: int(p.Tries), MaybeApplied: p.Maybe, Accepted: p.Maybe && p.Sent == Never, Lookup: p.Lookup}
	if p.Sent == Old || (p.Sent == Never && began == Old) {
		history.SinceFirstSend = keyTTL / 2
	}
	return history
}
