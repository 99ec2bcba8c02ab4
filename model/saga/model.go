// Package saga is a model of one run of three steps: how they are enqueued, claimed and ended, how the run's
// compensation begins, the passes that compensate it, and the operator who decides when the passes cannot.
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
// Enqueueing and claiming are two steps each, because the transaction may have read an old state of the saga when
// it commits. A pass also has two steps: it reads, and then acts if the saga was not written since. Everything
// else is one step.
//
// The decision after an attempt is not modelled: [dispatch.Policy] makes it. The next action of a pass is not
// modelled either: [compensations.Decide] decides it, for the step that completed last. If a step of the model and
// the real tables differ, a test that takes both fails.
//
// An operator who says that a step failed may be wrong; then a late effect is new information. Otherwise operators
// are right. Their decision and their change are one step.
//
// After a loss of commits, workers start again, and an operator accepts the loss before anything else happens. The
// database is restored to the enqueue of the steps, or to the state before the first undo. No record then shows
// that a step was undone: its provider, which knows its key, says that it is applied.
//
// The model leaves out a key's age, lost replies and batches, for which there is package row; fallbacks; windows
// in which an undo is possible; and pruning.
package saga

import (
	"fmt"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/model/explore"
)

// Model describes a run of one tool, and the guards that its model lacks.
type Model struct {
	Class        dispatch.Class // of the tool and of its undo
	Lookup       bool           // both have a lookup
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

// Tries of a lookup are counted only as far as decisions depend on them. Any try may be the last: LastTry is
// beyond every limit.
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

// Policies returns the engine's policies for a provider's tools.
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
	return s.Saga != Begun || doubt // a human must end the doubt
}

// isOpen reports whether an intent exists and is not settled.
func (r Row) isOpen() bool { return r.Place != Absent && r.Place != Settled }

// Steps is the largest number of forward steps in a run.
const Steps = 3

// State is the whole state of one run.
type State struct {
	Saga   Saga
	Steps  [Steps]Step
	Passes [2]Pass
	Ahead  Ahead

	LostCommits bool // the database has lost commits, which happens once
}

// Saga is the state of the run's saga.
type Saga uint8

// The states of a saga. Open is a run without a saga.
const (
	Open Saga = iota
	Begun
	Compensated
	Failed
	Resolved
	Cancelled
)

// Row is an intent.
type Row struct {
	Place  Place
	Status Status // of the newest attempt; pending before the first
	Tries  int8
	Maybe  bool // it may have been applied
	Asks   bool // the next attempt, or the present one, is a lookup
}

// Place is where an intent is.
type Place uint8

// The places, in the order in which an intent passes them.
const (
	Absent     Place = iota
	Committing       // in its agent's transaction, which saw no saga
	Queued
	Halting  // taken out of the queue by a pass that has not committed
	Claiming // in a claim that has not committed and saw no saga
	Claimed
	Settled
)

// Step is a forward step with its undo.
type Step struct {
	Row
	Closed  bool // it is claimed only to be stopped
	Effect  bool
	Flying  bool // an abandoned request may still arrive
	Witness bool // a worker that lost the row may still report its effect
	Guessed bool // an operator said that it failed, without knowing
	Done    int8 // its number in the order in which steps completed
	Old     bool // it was enqueued before the loss of commits, and may have been undone before the loss

	Undo     Row
	Undone   int8 // how often its undo was applied
	Knows    bool // a worker that lost the undo may still report it as applied
	Incident bool // an incident is open, because the step could not be undone
}

// completes gives a step its number in the order of completion.
func (s *State) completes(i int) {
	s.Steps[i].Done = 0
	for _, step := range s.Steps {
		s.Steps[i].Done = max(s.Steps[i].Done, step.Done+1)
	}
}

// Pass is one of two passes over the saga that may run at the same time.
type Pass struct {
	Acts  bool // it has read, and has not committed
	Stale bool // the saga was written since it read
	Plan  compensations.Action
	Step  int8
}

// Ahead holds a pass's decisions on the steps after the one that is being undone. Steps count from one; zero means
// no step.
type Ahead struct {
	Undoing int8
	Next    [Steps - 1]int8
	Ends    bool // after the last of them, the run is compensated
}

var sagaNames = [...]string{
	Open: "", Begun: "begun", Compensated: "compensated", Failed: "compensation_failed", Resolved: "resolved", Cancelled: "cancelled",
}

// States lists the states of sagas in the table.
func States() []string { return sagaNames[Begun:] }

// String returns the state's name in the table; "" for a run without a saga.
func (s Saga) String() string { return sagaNames[s] }

// Status is an index in a list: small states make the search fast.
type Status uint8

// Statuses that no worker's attempt sets.
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

// Is returns the status of package dispatch.
func (s Status) Is() dispatch.Status { return statuses[s] }

func (s Status) String() string { return string(s.Is()) }

// Statuses lists the statuses that the model knows.
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

// decide asks the engine for the decision after an attempt.
func (r *Row) decide(policy dispatch.Policy, outcome dispatch.Outcome) dispatch.Decision {
	return policy.Decide(r.history(), dispatch.Result{Outcome: outcome}, 0)
}

func (r *Row) history() dispatch.History {
	return dispatch.History{Tries: int(r.Tries), MaybeApplied: r.Maybe, Lookup: r.Asks}
}

// Guards are the rules that compensate a run completely, or report that this failed. A test can remove each, to
// show its purpose.
type Guards uint32

// The guards that a [Model] may lack.
const (
	// EnqueueLooks: a closed run accepts no further step.
	EnqueueLooks Guards = 1 << iota
	// ClaimLooks: a claim takes no row of a closed run to act.
	ClaimLooks
	// ClaimAsks: a row that may have been applied is then looked up, and not cancelled.
	ClaimAsks
	// FailureBegins: the commit that settles a failed step begins the saga.
	FailureBegins
	// HaltWaits: a pass waits for claims that did not see the saga, and reads after them.
	HaltWaits
	// OpenComesFirst: nothing is undone while a step is in flight or in doubt.
	OpenComesFirst
	// NewestFirst: the step that completed last is undone first.
	NewestFirst
	// OnePass: a pass locks the saga, and acts only if the saga was not written since it read.
	OnePass
	// OneUndo: a step has one undo.
	OneUndo
	// KeyedUndo: the provider recognises a repeated undo.
	KeyedUndo
	// UndoIsNoted: the commit that settles an undo marks the step.
	UndoIsNoted
	// NotesLater: if that commit did not, a pass marks the step.
	NotesLater
	// FailureIsTold: a saga that fails opens an incident in the same commit.
	FailureIsTold
	// LateIsTold: an effect that becomes known after its run was rolled back fails the saga.
	LateIsTold
	// LateUndoIsTold: an undo that becomes known after its step was undone by hand opens an incident.
	LateUndoIsTold
	// LateMarks: the worker that reports such an effect writes the saga.
	LateMarks
	// NewsDropAhead: decisions ahead are dropped once anything else happens to the run.
	NewsDropAhead
	// ResolveWaits: a saga is not resolved while an undo is unsettled.
	ResolveWaits
	// LostCommitsLeaveDoubt: a step that was enqueued before a loss of commits may have been applied.
	LostCommitsLeaveDoubt
	// LostUndosLeaveDoubt: its undo, which is enqueued again, may have been applied, too.
	LostUndosLeaveDoubt
)

var guardNames = []string{
	"EnqueueLooks", "ClaimLooks", "ClaimAsks", "FailureBegins", "HaltWaits", "OpenComesFirst", "NewestFirst", "OnePass", "OneUndo",
	"KeyedUndo", "UndoIsNoted", "NotesLater", "FailureIsTold", "LateIsTold", "LateUndoIsTold", "LateMarks", "NewsDropAhead", "ResolveWaits",
	"LostCommitsLeaveDoubt", "LostUndosLeaveDoubt",
}

// AllGuards returns the set of all guards.
func AllGuards() Guards { return 1<<len(guardNames) - 1 }

// String lists the guards by name.
func (g Guards) String() string { return explore.Chosen(uint32(g), guardNames) }

// next collects the possible steps of a state.
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

// forget drops details that make no difference any more.
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
				step.Witness, step.Guessed = false, false // the effect is recorded
			}
		}
		if step.Undo.Place != Absent && m.keeps(OneUndo) {
			step.Old = false // no other undo follows
		}
		if undo := &step.Undo; undo.Place == Settled {
			undo.Tries, undo.Maybe, undo.Asks = 0, false, false
			step.Knows = step.Knows && undo.Status != completed // it is on record
		}
	}
}

// The properties of the model.
const (
	NetZero       = "compensated: what was applied is undone, and nothing else is"
	NothingStands = "compensated: no step is on record as completed, in doubt or not undone"
	NewestIsFirst = "a step is undone after all that completed later"
	FailureIsBack = "the run of a step that failed is compensated"
	ClosedIsShut  = "no row of a closed run is claimed to act"
	ClosedIsLoud  = "a closed run takes no further step"
	UndoneOnce    = "an undo is applied once, and to what was applied"
	FailureTold   = "a saga that failed has an open incident"
	DoubleTold    = "a late undo of a step that was undone by hand opens an incident"
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
	{Name: DoubleTold, Holds: doubleIsTold},
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

// isNetZero accepts a step about which an operator guessed, because the truth is not known yet.
func (s *Step) isNetZero() bool { return s.Guessed || (!s.Flying && s.Effect == (s.Undone > 0)) }

func (s *Step) isClosed() bool {
	return s.Status != completed && s.Status != unknown && s.Status != notUndone && s.Place != Claimed
}

func (s *Step) isUndoneOnce() bool { return s.Undone <= 1 && (s.Effect || s.Undone == 0) }

func (s *Step) isQuiet() bool { return !s.Incident }

// newestIsFirst allows the commit that closes a step to enqueue the undo of the step before.
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

func doubleIsTold(from State, step explore.Step[State]) bool {
	for i := range from.Steps {
		before, after := &from.Steps[i], &step.To.Steps[i]
		comesLate := before.Undo.Status != completed && after.Undo.Status == completed && step.Who != theOperator
		if comesLate && before.Status == compensated && !after.Incident {
			return false
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
