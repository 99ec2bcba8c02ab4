// Package row is a model of one intent's way through the outbox: with two workers that crash, freeze and lose
// replies, reapers, an operator, the clock, and a provider whose effect happens now, late or never.
//
//	        an operator cancels or resolves it, or it is known late
//	  ┌───────────────────────────────────────────────────┐
//	  │  ┌────────────────────────────────────────────┐   │
//	  │  ▼          an operator retries it            │   ▼
//	queue ────────▶ claim: held, sent, answered ───▶ settled: completed,
//	     ▲  a worker   │        its attempt ends      │  ▲  failed, unknown,
//	     │  claims it  │        for good              │  │  cancelled
//	     └─────────────┘                              └──┘
//	  to act again, or to ask: settled like that,    resolved, or known
//	  reclaimed, reaped as lost                      late: completed
//
// There is no state between claimed and in flight: the committed claim is the recovery point. A transaction is one
// step, except when its parts matter: a reaper locks first and then reads, and an operator reads first and then
// acts. Only numbers on which a decision depends are counted, so workers may crash, and replies may be lost, any
// number of times.
//
// The decision after an attempt is not modelled: [dispatch.Policy] makes it. If a step of the model and a real
// outbox differ, a test that takes both fails.
//
// Time is modelled by its limits. No request is on its way for longer than its timeout and its lookup's margin,
// nor for half of its key's life. The lease of a dead worker has ended. An operator who resolves an intent has
// found out the truth.
//
// After a loss of commits, all workers start again before any claim.
//
// The model leaves out fallbacks, breakers, pauses and limits, which delay rows and settle none; reloads, which
// change a tool's class; pruning; and the runs of intents, for which there is package saga.
package row

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model describes a tool, and the guards that its model lacks.
type Model struct {
	Class         dispatch.Class
	Lookup        bool
	Batched       bool // a first claim may hold another row beside this one
	RepliesArrive bool // no reply of the database is lost
	LosesCommits  bool // the database may lose, once, all commits after the enqueue
	Without       Guards
}

const (
	maxAttempts  = 3
	keyTTL       = 24 * time.Hour
	timeout      = time.Minute
	margin       = time.Minute
	untilDrained = timeout + margin
)

// Tries of a lookup are counted only as far as decisions depend on them. Any try may be the last: LastTry is
// beyond every limit.
const (
	LookupTries = maxAttempts
	LastTry     = 100
)

// Explored returns the model in the form that package explore searches.
func (m Model) Explored() explore.Model[State] {
	return explore.Model[State]{
		Start:      State{Queue: Queued{Is: true}},
		Steps:      m.steps,
		Properties: properties,
		Rests:      func(s State) bool { return s.Settled },
	}
}

func (m Model) keeps(guard Guards) bool { return m.Without&guard == 0 }

// Policy returns the engine's policy for the tool.
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

// decide asks the engine for the decision after an attempt.
func (m Model) decide(past Past, began Age, outcome dispatch.Outcome) dispatch.Decision {
	history := past.history(began)
	history.MaybeApplied = history.MaybeApplied && m.keeps(StickyDoubt)
	return m.Policy().Decide(history, dispatch.Result{Outcome: outcome}, 0)
}

// history returns a claimed row as a lane sees it. began is when its attempt began.
func (p Past) history(began Age) dispatch.History {
	history := dispatch.History{Tries: int(p.Tries), MaybeApplied: p.Maybe, Accepted: p.Maybe && p.Sent == Never, Lookup: p.Lookup}
	if p.Sent == Old || (p.Sent == Never && began == Old) {
		history.SinceFirstSend = keyTTL / 2
	}
	return history
}

func (n *next) livesAndDies(w int) {
	worker := n.From.Workers[w]
	if n.From.isBlank(w) {
		return
	}
	if !worker.DeclaredDead {
		n.Chance(workers[w], "freezes, and is declared dead", func(s *State) { s.Workers[w].DeclaredDead = true })
	}
	if worker.Phase == Idle && worker.DeclaredDead {
		n.Add(workers[w], "finds that it is declared dead, and starts over", func(s *State) { n.startOver(s, w) })
	}
	n.Chance(workers[w], "crashes", func(s *State) {
		if worker.Phase == Waiting {
			s.World.fly()
		}
		n.startOver(s, w)
	})
}

// isBlank reports whether a worker remembers nothing and owns no claim.
func (s *State) isBlank(w int) bool {
	return s.Workers[w] == Worker{} && s.Claims[0].Owner != owner(w) && s.Claims[1].Owner != owner(w)
}

// startOver restarts a worker, which then remembers nothing.
func (m Model) startOver(s *State, w int) {
	s.Workers[w] = Worker{}
	for slot, claim := range s.Claims {
		switch {
		case claim.Owner != owner(w):
		case !claim.Settled && !m.keeps(RecoveryPoint): // the claim was not committed
			m.end(s, ended{past: claim.Past, outcome: dispatch.Released})
			s.finish(slot)
		case !m.keeps(FreshIdentity):
			s.Claims[slot].Known = false
		default:
			s.Claims[slot].Owner = Dead
		}
	}
}

// next collects the possible steps of a state.
type next struct {
	Model
	explore.Steps[State]
}

func (m Model) steps(from State) []explore.Step[State] {
	n := &next{m, explore.Steps[State]{From: from, Forget: m.forget}}
	for w := range from.Workers {
		n.worker(w)
	}
	n.reaper()
	n.operator()
	n.provider()
	n.clock()
	n.database()
	return n.Taken
}

// Guards are the rules that prevent a second effect or a forgotten one. A test can remove each, to show its
// purpose.
type Guards uint32

// The guards that a [Model] may lack.
const (
	// ClaimFences: a settlement counts only while its claim exists.
	ClaimFences Guards = 1 << iota
	// AttemptEndsOnce: if an attempt ends twice, the first end counts.
	AttemptEndsOnce
	// SettleBeforeFinish: a claim is deleted after its last row was settled.
	SettleBeforeFinish
	// RecoveryPoint: the claim is committed before anything is sent.
	RecoveryPoint
	// LostLeavesDoubt: a dead worker's row may have been sent.
	LostLeavesDoubt
	// LockBeforeRead: a reaper locks the claim, and then reads its unsettled rows.
	LockBeforeRead
	// ReapsOrphans: rows that a dead worker held are reclaimed.
	ReapsOrphans
	// ReclaimsForgotten: a worker releases claims of which it got no reply.
	ReclaimsForgotten
	// KeepsRemembered: a worker releases no other claims.
	KeepsRemembered
	// FreshIdentity: a worker that starts again has a new id.
	FreshIdentity
	// LeaseBeforeSend: a worker that was declared dead sends nothing.
	LeaseBeforeSend
	// StickyDoubt: doubt from before an attempt remains after it.
	StickyDoubt
	// TrueClass: a tool that repeats its effect is configured as non_idempotent.
	TrueClass
	// KeyLife: no row is retried once its key may be forgotten.
	KeyLife
	// AskedAtSend: KeyLife is checked again right before sending.
	AskedAtSend
	// DrainedLookup: a lookup's absence counts only once all sends are over.
	DrainedLookup
	// LateEvidence: a worker that lost its row may still report the effect.
	LateEvidence
	// UnknownIsReported: an unknown outcome opens an incident.
	UnknownIsReported
	// OperatorFences: an operator's change counts only if the intent has not changed since the operator decided.
	OperatorFences
	// OperatorTakesRow: a row that an operator settles leaves the queue.
	OperatorTakesRow
	// LostCommitsLeaveDoubt: after a loss of commits, a queued row may have been sent at any time since its
	// enqueue.
	LostCommitsLeaveDoubt
)

var guardNames = []string{
	"ClaimFences", "AttemptEndsOnce", "SettleBeforeFinish", "RecoveryPoint", "LostLeavesDoubt", "LockBeforeRead",
	"ReapsOrphans", "ReclaimsForgotten", "KeepsRemembered", "FreshIdentity", "LeaseBeforeSend", "StickyDoubt", "TrueClass",
	"KeyLife", "AskedAtSend", "DrainedLookup", "LateEvidence", "UnknownIsReported", "OperatorFences", "OperatorTakesRow",
	"LostCommitsLeaveDoubt",
}

// AllGuards returns the set of all guards.
func AllGuards() Guards { return 1<<len(guardNames) - 1 }

// String lists the guards by name.
func (g Guards) String() string { return explore.Chosen(uint32(g), guardNames) }

// The properties of the model.
const (
	OneEffect      = "a key has one effect, and one more for a duplicate that was accepted"
	OneRequest     = "what repeats its effect is sent once, and once more for a duplicate that was accepted"
	CompletedIsSo  = "completed has had its effect"
	FailedIsNot    = "failed and cancelled have had none"
	OnePlace       = "an intent is in the queue, in a claim or settled: in one of them"
	DoubtIsTold    = "an incident is open as long as the outcome is unknown"
	SettledStays   = "what is settled changes by an operator, or by late evidence of its effect"
	EvidenceCounts = "a settlement that knows of the effect leaves nothing on record against it, nor the row waiting"
)

var properties = []explore.Property[State]{
	explore.Always(OneEffect, func(s *State) bool { return s.World.Effects <= 1+s.World.Accepted }),
	explore.Always(OneRequest, func(s *State) bool { return s.World.Unproven <= 1+s.World.Accepted }),
	explore.Always(CompletedIsSo, func(s *State) bool { return !s.Settled || s.Newest != completed || s.World.Effects > 0 }),
	explore.Always(FailedIsNot, func(s *State) bool { return !s.deniesEffect() || s.World.Effects == 0 }),
	explore.Always(OnePlace, func(s *State) bool { return s.places() == 1 }),
	explore.Always(DoubtIsTold, func(s *State) bool { return s.Incident == (s.Settled && s.Newest == unknown) }),
	{Name: SettledStays, Holds: settledStays},
	{Name: EvidenceCounts, Holds: evidenceCounts},
}

func (s *State) deniesEffect() bool {
	return s.Settled && (s.Newest == failed || s.Newest == cancelled)
}

func (s *State) places() (places int) {
	if s.Queue.Is {
		places++
	}
	if s.Settled {
		places++
	}
	for _, claim := range s.Claims {
		if claim.Owner != NoOwner && !claim.Settled {
			places++
		}
	}
	return places
}

func settledStays(from State, step explore.Step[State]) bool {
	if !from.Settled || step.Who == theOperator || step.Who == theDatabase {
		return true
	}
	isLate := from.Newest != completed && step.To.Newest == completed
	return step.To.Settled && (step.To.Newest == from.Newest || isLate)
}

func (s *State) leavesDoubt() bool { return s.Queue.Is || s.Settled && s.Newest != completed }

func evidenceCounts(from State, step explore.Step[State]) bool {
	if step.What != settles && step.What != settlesUnheard {
		return true
	}
	for w := range from.Workers {
		if step.Who == workers[w] && from.Workers[w].knowsEffect() && step.To.leavesDoubt() {
			return false
		}
	}
	return true
}
