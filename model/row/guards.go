package row

import "strings"

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
	// ReapsOrphans: what a buried worker held is recovered.
	ReapsOrphans
	// ReclaimsForgotten: a worker gives back what it claimed without hearing of it.
	ReclaimsForgotten
	// KeepsRemembered: and nothing else.
	KeepsRemembered
	// FreshIdentity: who starts over was never there before.
	FreshIdentity
	// LeaseBeforeSend: a buried worker sends nothing.
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
	// LateEvidence: who lost its row may still tell that the effect happened.
	LateEvidence
	// UnknownIsTold: what nobody can tell opens an incident.
	UnknownIsTold
	// OperatorFences: an operator's change counts only if the intent still
	// stands as it did when that was decided.
	OperatorFences
	// OperatorTakesRow: what an operator settles leaves the queue.
	OperatorTakesRow
)

var guardNames = []string{
	"ClaimFences", "AttemptEndsOnce", "SettleBeforeFinish", "RecoveryPoint", "LostLeavesDoubt", "LockBeforeRead",
	"ReapsOrphans", "ReclaimsForgotten", "KeepsRemembered", "FreshIdentity", "LeaseBeforeSend", "StickyDoubt", "TrueClass",
	"KeyLife", "AskedAtSend", "DrainedLookup", "LateEvidence", "UnknownIsTold", "OperatorFences", "OperatorTakesRow",
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
