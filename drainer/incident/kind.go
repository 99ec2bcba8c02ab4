// Package incident lists the kinds of incidents. All that depends on a kind alone and
// not on how it is told begins here: the metrics, the configuration and the pages.
package incident

// Kind is the subject of an incident.
type Kind string

// The kinds, as the table outbox.incident knows them.
const (
	OutcomeUnknown        Kind = "outcome_unknown"
	CompensationFailed    Kind = "compensation_failed"
	ReversalWindowExpired Kind = "reversal_window_expired"
	KeyCollision          Kind = "key_collision"
	UnconfiguredProvider  Kind = "unconfigured_provider"
	SagaStalled           Kind = "saga_stalled"
	RefusedIntent         Kind = "refused_intent"
	UnknownOperation      Kind = "unknown_operation"
	FirstReplay           Kind = "first_replay"
	CredentialsRefused    Kind = "credentials_refused"
	Forbidden             Kind = "forbidden"
	Misconfigured         Kind = "misconfigured"
	HistoryChanged        Kind = "history_changed"
)

// Severity says whether an incident wakes a human.
type Severity string

// A channel without a match gets incidents of the severity page. A warning goes only to
// channels that ask for it.
const (
	Page    Severity = "page"
	Warning Severity = "warning"
)

// kinds gives each kind its severity, what it means to an operator who was just woken up,
// and what to do, in the order in which kinds are listed.
var kinds = []struct {
	kind      Kind
	severity  Severity
	means, do string
}{
	{
		OutcomeUnknown, Page,
		"it is not known whether this effect happened",
		"retry it under its key where `incidents show` says that this is safe; else find out, and resolve it",
	},
	{
		CompensationFailed, Page,
		"this step could not be undone",
		"`sagas retry` once the cause is gone, or undo it by hand",
	},
	{
		ReversalWindowExpired, Page,
		"it is too late to undo this step",
		"settle it with the provider, then `sagas retry --undone`: older steps are undone next",
	},
	{
		KeyCollision, Warning, // the agent was refused, and nothing is in doubt
		"an agent enqueued another payload under the key of this intent, and was refused",
		"find the agent by run and step; if its second effect is missing, let it enqueue that under its own key; then acknowledge",
	},
	{
		UnconfiguredProvider, Page,
		"intents wait for a provider that no drainer serves",
		"start a daemon that has it, or cancel its intents",
	},
	{
		SagaStalled, Page,
		"three passes over the saga did not end: the process died or stood still, or the database refused the undo",
		"read the log, then `sagas retry`",
	},
	{
		RefusedIntent, Page,
		"this intent was refused before it reached its provider; its run goes on",
		"correct tool or agent, then retry or acknowledge",
	},
	{
		UnknownOperation, Page,
		"intents wait for an operation that no daemon serves",
		"correct the name, add the tool or start its daemon, or cancel its intents",
	},
	{
		FirstReplay, Page,
		"the provider had seen the key of this intent before its first attempt: what it calls completed may be another intent's effect",
		"compare with the provider's records, then acknowledge",
	},
	{
		CredentialsRefused, Page,
		"intents wait because their provider refuses the credentials",
		"bring the right secret; a reload tries it at once",
	},
	{
		Forbidden, Page,
		"intents wait because their provider forbids this operation",
		"grant the permission, or say by a rule that 403 means the intent",
	},
	{
		Misconfigured, Page,
		"intents wait because no request could be made of any of this operation",
		"`intents list --error unrenderable_request` has one that says why",
	},
	{
		HistoryChanged, Page,
		"the database may have lost commits; providers with a non_idempotent tool or a fallback wait",
		"`drainer history` says what changed; find out what was lost, then `history accept`",
	},
}

// Kinds lists those of these severities, or all.
func Kinds(of ...Severity) []Kind {
	var listed []Kind
	for _, row := range kinds {
		wanted := len(of) == 0
		for _, severity := range of {
			wanted = wanted || severity == row.severity
		}
		if wanted {
			listed = append(listed, row.kind)
		}
	}
	return listed
}

// Severities lists them all.
func Severities() []Severity { return []Severity{Page, Warning} }

// Severity is that of the kind.
func (k Kind) Severity() Severity {
	for _, row := range kinds {
		if row.kind == k {
			return row.severity
		}
	}
	return Page // of a newer version: better one page too many
}

// Means explains the kind, of one intent.
func (k Kind) Means() string {
	for _, row := range kinds {
		if row.kind == k {
			return row.means
		}
	}
	return ""
}

// Do says how to end it.
func (k Kind) Do() string {
	for _, row := range kinds {
		if row.kind == k {
			return row.do
		}
	}
	return ""
}

// Match chooses the incidents that a channel gets: those that every list has.
type Match struct {
	Kinds     []Kind   // nil: those of the severity page
	Providers []string // nil: all
	Tools     []string // by full name; nil: all
}

// Chosen lists the kinds.
func (m Match) Chosen() []Kind {
	if m.Kinds == nil {
		return Kinds(Page)
	}
	return m.Kinds
}
