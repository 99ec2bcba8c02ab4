// Package saga is a model of one run of three steps: how they are enqueued,
// claimed and ended, how the run's compensation begins, the passes that
// compensate it, and the operator who decides where they cannot.
//
//	         a step fails,                nothing is
//	         or an operator says so       left to undo
//	 open ─────────────────────▶ begun ──────────────▶ compensated
//	  │                          ▲ ▲ │                      │
//	  │ cancelled                │ │ │ an undo fails,       │ an effect
//	  │ by an                    │ │ │ or there is none     │ comes late
//	  │ operator          retried│ │ ▼                      │
//	  │                          │ └─ compensation_failed ◀─┴── resolved
//	  ▼   an operator says so    │
//	cancelled ───────────────────┘    an operator resolves begun and compensation_failed
//
// Enqueueing and claiming are two steps each, because what such a transaction
// knows of the saga may be old when it commits. So is a pass, which reads, and
// acts if the saga was not written since. Everything else is one step.
//
// What follows from an attempt is not modelled: [dispatch.Policy] decides it. Nor is the
// next action of a pass: [compensations.Decide] decides it, for the step that completed
// last. Where a step and the real tables differ, a test that takes both fails.
//
// An operator who says that a step failed may be wrong: then an effect that
// comes late is news. Otherwise operators are right. What they decide and do
// is one step.
//
// A database that lost commits has its workers start over, and an operator accepts the loss, before anything is done again.
// It is restored to where the steps were enqueued, or to where no undo was. That a step was undone, no record tells then: its
// provider, which knows its key, says that it is applied.
//
// Left out are a key's age, lost replies and batches, for which there is package
// row; fallbacks; windows in which an undo is possible; and pruning.
package saga

import (
	"fmt"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model is a run of one tool, and what its way back goes without.
type Model struct {
	Class        dispatch.Class // of the tool and of its undo
	Lookup       bool           // both have one
	Irreversible bool           // no undo is declared for the first step
	Unattended   bool           // no operator touches the saga
	LosesCommits bool           // the database may once be restored to an earlier state
	Without      Guards

	policies compensations.Policies
}

const (
	shop        = "shop"
	maxAttempts = 2
)

// Tries of a lookup are counted no further than decisions depend on them: any
// may be the last, and that one is so late that nothing goes on after it.
const (
	LookupTries = maxAttempts + 1
	LastTry     = 100
)

// Explored returns the model in the form that package explore searches.
func (m Model) Explored() explore.Model[State] {
	m.policies = m.Policies(shop)
	return explore.Model[State]{
		Steps:      m.steps,
		Properties: properties,
		Rests:      State.rests,
	}
}

func (m Model) keeps(guard Guards) bool { return m.Without&guard == 0 }

// Policies are the engine's policies of a provider's tools.
func (m Model) Policies(provider string) compensations.Policies {
	tool := dispatch.Policy{Class: m.Class, KeyTTL: 24 * time.Hour, MaxAttempts: maxAttempts, Timeout: time.Minute}
	if m.Lookup {
		tool.Lookup = &dispatch.Lookup{Operation: "find"}
	}
	undo := tool
	undo.Reversal.None = true
	tools := map[string]dispatch.Policy{"undo": undo}
	tool.BeginsSaga = true
	for step := range Steps {
		if !m.Irreversible || step > 0 {
			tool.Reversal.Tool = provider + "/undo"
		}
		tools[Operation(step)] = tool
	}
	return compensations.Policies{provider: tools}
}

// Operation returns the operation that a step calls.
func Operation(step int) string { return fmt.Sprintf("act-%d", step+1) }

func (m Model) forward(step int) dispatch.Policy { return m.policies[shop][Operation(step)] }

func (m Model) undo() dispatch.Policy { return m.policies[shop]["undo"] }

func (s State) rests() bool {
	doubt := false
	for _, step := range s.Steps {
		if step.isOpen() || step.Undo.isOpen() {
			return false
		}
		doubt = doubt || step.Place == Settled && step.Status == unknown
	}
	return s.Saga != Begun || doubt // which is a human's
}

// isOpen reports whether an intent is on its way.
func (r Row) isOpen() bool { return r.Place != Absent && r.Place != Settled }

// Steps is how many forward steps a run takes at most.
const Steps = 3

// State is all there is of one run.
type State struct {
	Saga   Saga
	Steps  [Steps]Step
	Passes [2]Pass
	Ahead  Ahead

	LostCommits bool // once
}

// Saga is where the run's saga stands.
type Saga uint8

// A saga's states. Open is the run that has none.
const (
	Open Saga = iota
	Begun
	Compensated
	Failed
	Resolved
	Cancelled
)

// Row is an intent, wherever it is.
type Row struct {
	Place  Place
	Status Status // that of the newest attempt; pending before there is one
	Tries  int8
	Maybe  bool // it may have been applied
	Asks   bool // the next attempt, or this one, asks
}

// Place is where an intent is.
type Place uint8

// Places, in the order of a journey.
const (
	Absent     Place = iota
	Committing       // by its agent, which saw no saga
	Queued
	Halting  // out of the queue, once the pass commits
	Claiming // by a turn that saw no saga
	Claimed
	Settled
)

// Step is a forward step, and its undo.
type Step struct {
	Row
	Closed  bool // it is claimed to be stopped
	Effect  bool
	Flying  bool // an abandoned request is on its way
	Witness bool // a worker that lost the row may yet report its effect
	Guessed bool // an operator said that it failed, and did not know
	Done    int8 // its place among the completed steps, by when they completed
	Old     bool // it was there when commits were lost: it may have been undone by then

	Undo     Row
	Undone   int8 // how often its undo was applied
	Knows    bool // a worker that lost the undo may yet report that
	Incident bool // open: it could not be undone
}

// completes gives a step its place.
func (s *State) completes(i int) {
	s.Steps[i].Done = 0
	for _, step := range s.Steps {
		s.Steps[i].Done = max(s.Steps[i].Done, step.Done+1)
	}
}

// Pass is one pass over the saga, of two that may run at once.
type Pass struct {
	Acts  bool // it has read, and not committed
	Stale bool // the saga was written since
	Plan  compensations.Action
	Step  int8
}

// Ahead holds a pass's decisions on the steps that follow the one that is being undone.
// Steps count from one; zero is none.
type Ahead struct {
	Undoing int8
	Next    [Steps - 1]int8
	Ends    bool // the run is compensated after the last of them
}

var sagaNames = [...]string{
	Open: "", Begun: "begun", Compensated: "compensated", Failed: "compensation_failed", Resolved: "resolved", Cancelled: "cancelled",
}

// States are those of a run that has a saga.
func States() []string { return sagaNames[Begun:] }

// String is how the table calls it; empty for a run without a saga.
func (s Saga) String() string { return sagaNames[s] }

// Status is a place in a list: small states make a fast search.
type Status uint8

// Statuses that no attempt of a worker leaves.
const (
	statusInProgress         dispatch.Status = "in_progress"
	statusCancelled          dispatch.Status = "cancelled"
	statusCompensated        dispatch.Status = "compensated"
	statusCompensationFailed dispatch.Status = "compensation_failed"
)

var statuses = []dispatch.Status{
	dispatch.StatusPending, dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown,
	statusCancelled, statusCompensated, statusCompensationFailed,
}

var (
	pending     = statusOf(dispatch.StatusPending)
	completed   = statusOf(dispatch.StatusCompleted)
	failed      = statusOf(dispatch.StatusFailed)
	unknown     = statusOf(dispatch.StatusUnknown)
	cancelled   = statusOf(statusCancelled)
	compensated = statusOf(statusCompensated)
	notUndone   = statusOf(statusCompensationFailed)
)

func statusOf(status dispatch.Status) Status {
	place := slices.Index(statuses, status)
	if place < 0 {
		panic("the model does not know the status " + status)
	}
	return Status(place)
}

// Is is the status itself.
func (s Status) Is() dispatch.Status { return statuses[s] }

func (s Status) String() string { return string(s.Is()) }

// Statuses are those that the model knows.
func Statuses() (known []string) {
	for _, status := range statuses {
		known = append(known, string(status))
	}
	return known
}

// claim takes a row out of the queue.
func (r *Row) claim() {
	r.Place = Claimed
	r.Tries++
	if r.Asks {
		r.Tries = min(r.Tries, LookupTries)
	}
}

// end applies the decision on an attempt.
func (r *Row) end(decision dispatch.Decision) {
	r.Place, r.Status = Settled, statusOf(decision.Status)
	if decision.Back() {
		r.Place = Queued
	}
	r.Tries, r.Maybe, r.Asks = int8(decision.Tries), decision.MaybeApplied, decision.Lookup
}

func (r *Row) settle(status Status) { r.Place, r.Status = Settled, status }

func (r *Row) cancel() { r.settle(cancelled) }

// decide asks the engine what follows from an attempt.
func (r *Row) decide(policy dispatch.Policy, outcome dispatch.Outcome) dispatch.Decision {
	return policy.Decide(r.history(), dispatch.Result{Outcome: outcome}, 0)
}

func (r *Row) history() dispatch.History {
	return dispatch.History{Tries: int(r.Tries), MaybeApplied: r.Maybe, Lookup: r.Asks}
}

// Guards are the rules that compensate a run wholly, or report that it
// was not. Each is a switch, so that a test can take it away and see what it
// was for.
type Guards uint32

// What a [Model] can go without.
const (
	// EnqueueLooks: a closed run takes no further step.
	EnqueueLooks Guards = 1 << iota
	// ClaimLooks: a claim takes no row of a closed run to act.
	ClaimLooks
	// ClaimAsks: what may have been applied is asked about then, not cancelled.
	ClaimAsks
	// FailureBegins: the commit that settles a failed step begins the saga.
	FailureBegins
	// HaltWaits: a pass reads after the claims that had not seen the saga.
	HaltWaits
	// OpenComesFirst: nothing is undone while a step is in flight or in doubt.
	OpenComesFirst
	// NewestFirst: of what is to be undone, what completed last comes first.
	NewestFirst
	// OnePass: a pass has taken the saga, and acts only if that was not written since it read.
	OnePass
	// OneUndo: a step has one undo.
	OneUndo
	// KeyedUndo: the provider of an undo knows it again.
	KeyedUndo
	// UndoIsNoted: the commit that settles an undo marks the step.
	UndoIsNoted
	// NotesLater: a pass marks it otherwise.
	NotesLater
	// FailureIsTold: a saga that fails opens an incident in the same commit.
	FailureIsTold
	// LateIsTold: an effect that comes after its run was rolled back fails the
	// saga.
	LateIsTold
	// LateMarks: the worker that reports it writes the saga.
	LateMarks
	// NewsDropAhead: what was decided ahead counts as long as nothing else has happened to the run.
	NewsDropAhead
	// ResolveWaits: a saga is not resolved while an undo is under way.
	ResolveWaits
	// LostCommitsLeaveDoubt: a step that was enqueued when commits were lost may have been applied.
	LostCommitsLeaveDoubt
	// LostUndosLeaveDoubt: and its undo, which is enqueued again.
	LostUndosLeaveDoubt
)

var guardNames = []string{
	"EnqueueLooks", "ClaimLooks", "ClaimAsks", "FailureBegins", "HaltWaits", "OpenComesFirst", "NewestFirst", "OnePass", "OneUndo",
	"KeyedUndo", "UndoIsNoted", "NotesLater", "FailureIsTold", "LateIsTold", "LateMarks", "NewsDropAhead", "ResolveWaits",
	"LostCommitsLeaveDoubt", "LostUndosLeaveDoubt",
}

// AllGuards is every guard there is.
func AllGuards() Guards { return 1<<len(guardNames) - 1 }

// String lists the guards by name.
func (g Guards) String() string { return explore.Chosen(uint32(g), guardNames) }

// next collects the steps that can be taken from a state.
type next struct {
	Model
	explore.Steps[State]
}

func (m Model) steps(from State) []explore.Step[State] {
	n := &next{m, explore.Steps[State]{From: from, Forget: m.forget}}
	for i := range from.Steps {
		n.forwardStep(i)
		n.undoStep(i)
	}
	for p := range from.Passes {
		n.pass(p)
	}
	if !n.Unattended {
		n.operator()
	}
	n.database()
	return n.Taken
}

// forget drops what makes no difference any more.
func (m Model) forget(s *State) {
	if s.Saga != Begun {
		s.Ahead = Ahead{}
	}
	for i := range s.Steps {
		step := &s.Steps[i]
		if step.Effect && m.Class == dispatch.KeyIdempotent {
			step.Flying = false // the provider knows the key
		}
		if step.Place == Settled {
			step.Tries, step.Maybe, step.Asks, step.Closed = 0, false, false, false
			if step.Status == completed || step.Status == compensated || step.Status == notUndone {
				step.Witness, step.Guessed = false, false // it is on record
			}
		}
		if step.Undo.Place != Absent && m.keeps(OneUndo) {
			step.Old = false // no other one comes
		}
		if undo := &step.Undo; undo.Place == Settled {
			undo.Tries, undo.Maybe, undo.Asks = 0, false, false
			step.Knows = step.Knows && undo.Status != completed // it is on record
		}
	}
}

// What a run keeps.
const (
	NetZero       = "compensated: what was applied is undone, and nothing else is"
	NothingStands = "compensated: no step is on record as completed, in doubt or not undone"
	NewestIsFirst = "a step is undone after all that completed later"
	FailureIsBack = "the run of a step that failed is compensated"
	ClosedIsShut  = "no row of a closed run is claimed to act"
	ClosedIsLoud  = "a closed run takes no further step"
	UndoneOnce    = "an undo is applied once, and to what was applied"
	FailureTold   = "a saga that failed has an open incident"
	ResolvedRests = "a resolved saga sends nothing more"
)

var properties = []explore.Property[State]{
	explore.Always(NetZero, func(s *State) bool { return s.Saga != Compensated || s.all((*Step).isNetZero) }),
	explore.Always(NothingStands, func(s *State) bool { return s.Saga != Compensated || s.all((*Step).isClosed) }),
	explore.Always(UndoneOnce, func(s *State) bool { return s.all((*Step).isUndoneOnce) }),
	explore.Always(FailureTold, func(s *State) bool { return s.Saga != Failed || !s.all((*Step).isQuiet) }),
	explore.Always(ResolvedRests, func(s *State) bool {
		return s.Saga != Resolved || s.all(func(step *Step) bool { return !step.Undo.isOpen() })
	}),
	{Name: NewestIsFirst, Holds: newestIsFirst},
	{Name: FailureIsBack, Holds: failureIsBack},
	{Name: ClosedIsShut, Holds: closedIsShut},
	{Name: ClosedIsLoud, Holds: closedIsLoud},
}

func (s *State) all(holds func(*Step) bool) bool {
	for i := range s.Steps {
		if !holds(&s.Steps[i]) {
			return false
		}
	}
	return true
}

// isNetZero leaves out what an operator guessed: it is not known yet.
func (s *Step) isNetZero() bool { return s.Guessed || (!s.Flying && s.Effect == (s.Undone > 0)) }

func (s *Step) isClosed() bool {
	return s.Status != completed && s.Status != unknown && s.Status != notUndone && s.Place != Claimed
}

func (s *Step) isUndoneOnce() bool { return s.Undone <= 1 && (s.Effect || s.Undone == 0) }

func (s *Step) isQuiet() bool { return !s.Incident }

// newestIsFirst lets the commit that closes a step enqueue the undo of the one before.
func newestIsFirst(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		if from.Steps[i].Undo.Place != Absent || step.To.Steps[i].Undo.Place == Absent {
			continue
		}
		for j := range from.Steps {
			later := &from.Steps[j]
			isLater := later.Done > from.Steps[i].Done || later.Done == 0 && later.Place >= Claiming
			if j != i && isLater && !step.To.Steps[j].isClosed() {
				return false
			}
		}
	}
	return true
}

func failureIsBack(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		before, after := from.Steps[i].Row, step.To.Steps[i].Row
		fails := before.Place == Claimed && after.Place == Settled && after.Status == failed
		if fails && step.To.Saga == Open {
			return false
		}
	}
	return true
}

func closedIsShut(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		before, after := &from.Steps[i], &step.To.Steps[i]
		takes := before.Place == Queued && (after.Place == Claiming || after.Place == Claimed)
		if takes && from.Saga != Open && !after.Closed && !after.Asks {
			return false
		}
	}
	return true
}

func closedIsLoud(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		if from.Saga != Open && from.Steps[i].Place == Absent && step.To.Steps[i].Place != Absent {
			return false
		}
	}
	return true
}
