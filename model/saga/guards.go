package saga

import "strings"

// Guards are the rules that take a run back wholly, or tell somebody that it
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
	// NewestFirst: of what is to be undone, the newest comes first.
	NewestFirst
	// OnePass: a pass has the saga to itself.
	OnePass
	// OneUndo: a step has one undo.
	OneUndo
	// KeyedUndo: the provider of an undo knows it again.
	KeyedUndo
	// UndoIsNoted: the commit that settles an undo tells the step.
	UndoIsNoted
	// NotesLater: a pass tells it otherwise.
	NotesLater
	// FailureIsTold: a saga that fails opens an incident in the same commit.
	FailureIsTold
	// LateIsTold: an effect that comes after its run went back fails the saga.
	LateIsTold
	// LateWaits: whoever tells of it waits for a pass that is under way.
	LateWaits
	// ResolveWaits: a saga is not resolved while an undo is under way.
	ResolveWaits
)

var guardNames = []string{
	"EnqueueLooks", "ClaimLooks", "ClaimAsks", "FailureBegins", "HaltWaits", "OpenComesFirst", "NewestFirst", "OnePass", "OneUndo",
	"KeyedUndo", "UndoIsNoted", "NotesLater", "FailureIsTold", "LateIsTold", "LateWaits", "ResolveWaits",
}

// AllGuards is every guard there is.
func AllGuards() Guards { return 1<<len(guardNames) - 1 }

// String lists the guards by name.
func (g Guards) String() string {
	var names []string
	for i, name := range guardNames {
		if g&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}
