// Package row is a model of one intent's way through the outbox: two workers
// that crash, freeze and lose replies, reapers, an operator, the clock, and a
// provider that has its effect now, late or never.
//
//	        an operator cancels or resolves it, or it is known late
//	  ┌───────────────────────────────────────────────────┐
//	  │  ┌────────────────────────────────────────────┐   │
//	  │  ▼          an operator retries it            │   ▼
//	queue ────────▶ claim: held, sent, heard of ───▶ settled: completed,
//	     ▲  a worker   │        its attempt ends      │  ▲  failed, unknown,
//	     │  claims it  │        for good              │  │  cancelled
//	     └─────────────┘                              └──┘
//	  to act again, or to ask: settled like that,    resolved, or known
//	  reclaimed, reaped as lost                      late: completed
//
// There is no state between claimed and in flight: the committed claim is the
// recovery point. A transaction is one step, except where two meet: a reaper
// locks first and then reads, an operator looks first and then acts. Nothing is
// counted but what a decision depends on, so workers may crash, and replies get
// lost, any number of times.
//
// What follows from an attempt is not modelled: [dispatch.Policy] decides it.
// Where a step and a real outbox differ, a test that takes both fails.
//
// Time is modelled by its limits. No request is on its way for longer than its timeout and
// its lookup's margin, nor for half of its key's life; the lease of a dead worker has run
// out. An operator who resolves an intent has found out the truth.
//
// A database that lost commits has its workers start over before anything is claimed again.
//
// Left out are fallbacks, breakers, pauses and limits, which hold rows back and
// settle none; reloads, which change a tool's class; pruning; and the runs that
// intents belong to, for which there is package saga.
package row

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model is a tool, and what its rows' journey goes without.
type Model struct {
	Class         dispatch.Class
	Lookup        bool
	Batched       bool // a first claim may hold another row beside this one
	RepliesArrive bool // no reply of the database is lost
	LosesCommits  bool // the database may once go back to where the intent was enqueued
	Without       Guards
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

// Policy is the engine's policy of the tool.
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

// history is a lane's view of a claimed row, and of when its attempt began.
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

// isBlank holds for a worker without a past.
func (s *State) isBlank(w int) bool {
	return s.Workers[w] == Worker{} && s.Claims[0].Owner != owner(w) && s.Claims[1].Owner != owner(w)
}

// startOver begins a new life, which remembers nothing.
func (m Model) startOver(s *State, w int) {
	s.Workers[w] = Worker{}
	for slot, claim := range s.Claims {
		switch {
		case claim.Owner != owner(w):
		case !claim.Settled && !m.keeps(RecoveryPoint): // nothing of it was committed
			m.end(s, ended{past: claim.Past, outcome: dispatch.Released})
			s.finish(slot)
		case !m.keeps(FreshIdentity):
			s.Claims[slot].Known = false
		default:
			s.Claims[slot].Owner = Dead
		}
	}
}

// next collects the steps that can be taken from a state.
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

// Guards are the rules that keep an effect from happening twice, or from being
// forgotten. Each is a switch, so that a test can take it away and see what it
// was for.
type Guards uint32

// What a [Model] can go without.
const (
	// ClaimFences: a settlement counts only while its claim is there.
	ClaimFences Guards = 1 << iota
	// AttemptEndsOnce: of two ends of one attempt the first counts.
	AttemptEndsOnce
	// SettleBeforeFinish: a claim goes after its last row was settled.
	SettleBeforeFinish
	// RecoveryPoint: the claim is committed before anything is sent.
	RecoveryPoint
	// LostLeavesDoubt: a dead worker's row may have been sent.
	LostLeavesDoubt
	// LockBeforeRead: a reaper reads what is unsettled after it locked the claim.
	LockBeforeRead
	// ReapsOrphans: what a dead worker held is recovered.
	ReapsOrphans
	// ReclaimsForgotten: a worker gives back what it claimed without hearing of it.
	ReclaimsForgotten
	// KeepsRemembered: and nothing else.
	KeepsRemembered
	// FreshIdentity: who starts over was never there before.
	FreshIdentity
	// LeaseBeforeSend: a worker that was declared dead sends nothing.
	LeaseBeforeSend
	// StickyDoubt: what was in doubt before an attempt still is after it.
	StickyDoubt
	// TrueClass: a tool that repeats its effect is configured as one.
	TrueClass
	// KeyLife: nothing is retried once its key may be forgotten.
	KeyLife
	// AskedAtSend: that is asked again right before sending.
	AskedAtSend
	// DrainedLookup: absence is believed once all sends are over.
	DrainedLookup
	// LateEvidence: a worker that lost its row may still report the effect.
	LateEvidence
	// UnknownIsReported: an unknown outcome opens an incident.
	UnknownIsReported
	// OperatorFences: an operator's change counts only if the intent still
	// stands as it did when that was decided.
	OperatorFences
	// OperatorTakesRow: what an operator settles leaves the queue.
	OperatorTakesRow
	// LostCommitsLeaveDoubt: what was due when commits were lost may have been sent, since its enqueue.
	LostCommitsLeaveDoubt
)

var guardNames = []string{
	"ClaimFences", "AttemptEndsOnce", "SettleBeforeFinish", "RecoveryPoint", "LostLeavesDoubt", "LockBeforeRead",
	"ReapsOrphans", "ReclaimsForgotten", "KeepsRemembered", "FreshIdentity", "LeaseBeforeSend", "StickyDoubt", "TrueClass",
	"KeyLife", "AskedAtSend", "DrainedLookup", "LateEvidence", "UnknownIsReported", "OperatorFences", "OperatorTakesRow",
	"LostCommitsLeaveDoubt",
}

// AllGuards is every guard there is.
func AllGuards() Guards { return 1<<len(guardNames) - 1 }

// String lists the guards by name.
func (g Guards) String() string { return explore.Chosen(uint32(g), guardNames) }

// What the row's journey keeps.
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
