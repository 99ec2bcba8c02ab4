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
)

// Severity says whether an incident wakes a human.
type Severity string

// A channel without a match gets incidents of the severity page. A warning goes only to
// channels that ask for it.
const (
	Page    Severity = "page"
	Warning Severity = "warning"
)

// kinds gives each kind its severity, in the order in which kinds are listed.
var kinds = []struct {
	kind     Kind
	severity Severity
}{
	{OutcomeUnknown, Page},
	{CompensationFailed, Page},
	{ReversalWindowExpired, Page},
	{KeyCollision, Warning}, // the agent was refused, and nothing is in doubt
	{UnconfiguredProvider, Page},
	{SagaStalled, Page},
	{RefusedIntent, Page},
	{UnknownOperation, Page},
	{FirstReplay, Page},
	{CredentialsRefused, Page},
	{Forbidden, Page},
	{Misconfigured, Page},
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
