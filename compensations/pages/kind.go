package pages

// Kind is what an incident is about.
type Kind string

// The kinds, as the table outbox.incident knows them.
const (
	OutcomeUnknown        Kind = "outcome_unknown"
	CompensationFailed    Kind = "compensation_failed"
	ReversalWindowExpired Kind = "reversal_window_expired"
	KeyCollision          Kind = "key_collision"
	UnconfiguredProvider  Kind = "unconfigured_provider"
)

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{OutcomeUnknown, CompensationFailed, ReversalWindowExpired, KeyCollision, UnconfiguredProvider}
}

// meaning is a kind for somebody who was just woken up.
var meaning = map[Kind]string{
	OutcomeUnknown:        "nobody can tell whether this effect happened",
	CompensationFailed:    "this step could not be undone",
	ReversalWindowExpired: "it is too late to undo this step",
	KeyCollision:          "an agent enqueued another payload under the key of this intent, and was refused",
	UnconfiguredProvider:  "this intent and maybe others wait for a provider that no drainer serves",
}

// remedy lists the commands, beside looking and acknowledging, that lead out of
// it. A collision has no other: acknowledging ends it.
var remedy = map[Kind][]string{
	OutcomeUnknown:        {"drainer intents resolve INTENT --as completed|failed --reason TEXT"},
	CompensationFailed:    sagaRemedy,
	ReversalWindowExpired: sagaRemedy,
	UnconfiguredProvider:  {"drainer status", "drainer intents cancel INTENT --reason TEXT"},
}

var sagaRemedy = []string{
	"drainer sagas show --intent INTENT",
	"drainer sagas retry --intent INTENT --reason TEXT",
	"drainer sagas resolve --intent INTENT --reason TEXT",
}
