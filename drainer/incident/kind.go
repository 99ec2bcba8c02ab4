// Package incident lists the kinds of incidents, with their severities and texts. Metrics, configuration and pages
// take the kinds from here.
package incident

// Kind is the subject of an incident.
type Kind string

// These are the kinds in the table outbox.incident.
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

// kinds gives each kind its severity, its meaning for an operator who was just woken up, and the
// instruction. Kinds are listed in this order.
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
		KeyCollision, Warning, // the agent was refused, and no outcome is in doubt
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

// Kinds lists the kinds of these severities, or all kinds if none is given.
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

// Severities lists all severities.
func Severities() []Severity { return []Severity{Page, Warning} }

// Severity returns the severity of the kind.
func (k Kind) Severity() Severity {
	for _, row := range kinds {
		if row.kind == k {
			return row.severity
		}
	}
	return Page // a kind of a newer version: one page too many is better than a missing one
}

// Means explains an incident of the kind about one intent.
func (k Kind) Means() string {
	for _, row := range kinds {
		if row.kind == k {
			return row.means
		}
	}
	return ""
}

// Do says how to end an incident of the kind.
func (k Kind) Do() string {
	for _, row := range kinds {
		if row.kind == k {
			return row.do
		}
	}
	return ""
}

// Match chooses the incidents that a channel gets. An incident must match all three lists.
type Match struct {
	Kinds     []Kind   // nil: the kinds of the severity page
	Providers []string // nil: all
	Tools     []string // by full name; nil: all
}

// Chosen lists the kinds that the match chooses.
func (m Match) Chosen() []Kind {
	if m.Kinds == nil {
		return Kinds(Page)
	}
	return m.Kinds
}
