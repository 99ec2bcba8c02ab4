package saga

import "github.com/agentoutbox/drainer/compensations"

// Steps is how many forward steps a run takes at most.
const Steps = 3

// State is all there is of one run.
type State struct {
	Saga   Saga
	Steps  [Steps]Step
	Passes [2]Pass
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
	Flying  bool // a request is on its way that nobody waits for
	Witness bool // a worker that lost the row may yet tell of its effect
	Guessed bool // an operator said that it failed, and did not know

	Undo     Row
	Undone   int8 // how often its undo was applied
	Incident bool // open: it could not be undone
}

// Pass is one pass over the saga, of two that may run at once.
type Pass struct {
	Acts bool // it has read, and not committed
	Plan compensations.Action
	Step int8
}

var sagaNames = [...]string{
	Open: "", Begun: "begun", Compensated: "compensated", Failed: "compensation_failed", Resolved: "resolved", Cancelled: "cancelled",
}

// States are those of a run that has a saga.
func States() []string { return sagaNames[Begun:] }

// String is how the table calls it; empty for a run without a saga.
func (s Saga) String() string { return sagaNames[s] }
