package pages

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agentoutbox/drainer/drainer/incident"
)

// remedy lists the commands that end an incident of a kind, except those that show or acknowledge it. A collision and a
// first replay need no other command, since an acknowledgement resolves them. It also resolves a refused intent.
var remedy = map[incident.Kind][]string{
	// The retry comes first: the plain retry is refused if it is not safe.
	incident.OutcomeUnknown:        {"drainer intents retry INTENT --config FILE --reason TEXT", "drainer intents resolve INTENT --as completed|failed --reason TEXT"},
	incident.CompensationFailed:    sagaRemedy,
	incident.ReversalWindowExpired: {sagaRemedy[0], "drainer sagas retry --intent INTENT --undone INTENT --reason TEXT", sagaRemedy[2]},
	incident.SagaStalled:           sagaRemedy,
	incident.RefusedIntent:         {"drainer intents retry INTENT --config FILE --reason TEXT"},
	incident.UnknownOperation:      {"drainer status", "drainer intents cancel INTENT --reason TEXT"},
	incident.UnconfiguredProvider:  {"drainer status", "drainer intents cancel INTENT --reason TEXT"},
	incident.CredentialsRefused:    configurationRemedy,
	incident.Forbidden:             configurationRemedy,
	incident.Misconfigured:         configurationRemedy,
	incident.HistoryChanged:        {"drainer history", "drainer history accept --reason TEXT"},
}

var configurationRemedy = []string{"drainer providers list", "drainer providers resume PROVIDER --reason TEXT"}

var sagaRemedy = []string{
	"drainer sagas show --intent INTENT",
	"drainer sagas retry --intent INTENT --reason TEXT",
	"drainer sagas resolve --intent INTENT --reason TEXT",
}

// State is the state of an incident or of a group.
type State string

// An incident is open until an operator acknowledges it or its cause is gone. It is resolved once its cause is gone.
// A group is open while any of its incidents is open, and resolved once all of them are resolved.
const (
	Open         State = "open"
	Acknowledged State = "acknowledged"
	Resolved     State = "resolved"
)

// Page is the message to a channel about a group: the incidents of one kind at one provider that are open at the same
// time. The first incident of the opened group identifies the group. The page names the intent of this incident by
// its number and its key, which is a hash. Of the agent's data the page shows only the tool's name.
type Page struct {
	Outbox         string // identifies the outbox, since several may share a channel
	IncidentID     int64  // the first incident
	Generation     int    // how often the first incident was opened
	State          State  // of the group
	Kind           incident.Kind
	IntentID       int64  // 0: the incident has no intent, or it is not known any more; then there is no key
	ToolName       string // a tool or a provider; empty: it is not known any more, or the incident is about the whole outbox
	IdempotencyKey string
	OpenedAt       time.Time
	By             string    // who acknowledged or resolved the first incident; empty while the group is open
	Count          int       // how many incidents are open; if none is, how many the last page counted
	FirstIsOver    bool      // the first incident is acknowledged or resolved, so only others are open
	Newest         time.Time // when the last of them was opened
	Sends          int       // how many pages about the group this channel got before
	Console        string    // the console's URL in browsers; empty: the page has no link
	IsNarrow       bool      // the channel's match leaves out some incidents of the same kind and provider
}

// isSingle reports whether the page is about its first incident only.
func (p Page) isSingle() bool { return p.Count <= 1 && (!p.FirstIsOver || p.State != Open) }

// DedupKey identifies one opening of one group, in each page about it. It does not contain the
// intent's key, because an operator may give the intent another key.
func (p Page) DedupKey() string {
	return fmt.Sprintf("outbox-incident-%s-%d-%d", p.Outbox, p.IncidentID, p.Generation)
}

// MessageID identifies one message. It stays the same if the message is retried. Each further message about the group,
// a repetition too, has another id.
func (p Page) MessageID() string {
	return fmt.Sprintf("%s-%s-%d", p.DedupKey(), p.State, p.Sends)
}

// Summary returns one line about the page.
func (p Page) Summary() string { return p.summary(p.tool()) }

func (p Page) summary(tool string) string {
	switch {
	case p.Kind == incident.HistoryChanged:
		tool = "the whole outbox"
	case p.ToolName == "":
		tool = "its tool is not known any more"
	}
	if p.IntentID != 0 {
		tool += fmt.Sprintf(", intent %d", p.IntentID)
	}
	if p.isSingle() {
		return fmt.Sprintf("%s: %s (%s)", p.Kind, p.Kind.Means(), tool)
	}
	return fmt.Sprintf("%s, %s: %s (the first: %s)", p.Kind, p.incidents(), p.Kind.Means(), tool)
}

func (p Page) incidents() string {
	if p.Count == 1 {
		return "1 incident"
	}
	return fmt.Sprintf("%d incidents", p.Count)
}

// Todo lists the commands to type while the group is open. It is nil otherwise.
func (p Page) Todo() []string {
	if p.State != Open {
		return nil
	}
	intent, ack := strconv.FormatInt(p.IntentID, 10), fmt.Sprintf("drainer incidents ack %d --reason TEXT", p.IncidentID)
	var todo []string
	switch {
	case p.isSingle() && p.IntentID != 0:
		todo = []string{"drainer intents show " + intent}
	case !p.isSingle():
		chosen, isGroup := p.chosen()
		intent, ack = "INTENT", "drainer incidents ack INCIDENT... --reason TEXT"
		if isGroup {
			ack = "drainer incidents ack " + chosen + " --reason TEXT"
		}
		todo = []string{"drainer incidents list " + chosen, "drainer intents show INTENT"}
	}
	for _, command := range remedy[p.Kind] {
		todo = append(todo, strings.NewReplacer("INTENT", intent, "PROVIDER", cmp.Or(p.provider(), "PROVIDER")).Replace(command))
	}
	return append(todo, ack)
}

// chosen returns flags that choose the incidents of the group, and whether they choose no
// others. They leave out a provider's name that a shell would not take as one plain word.
func (p Page) chosen() (flags string, isGroup bool) {
	flags = "--kind " + string(p.Kind)
	if spansProviders(p.Kind) {
		return flags, !p.IsNarrow
	}
	provider, isPlain := p.plainProvider()
	if !isPlain {
		return flags, false
	}
	return flags + " --provider " + provider, !p.IsNarrow
}

// plainProvider returns the provider's name, and whether neither a shell nor a link changes any letter of it.
func (p Page) plainProvider() (provider string, is bool) {
	provider, _, _ = strings.Cut(p.ToolName, "/")
	return provider, provider != "" && provider == p.provider() && !strings.HasPrefix(provider, "-")
}

// link returns the console's URL for the incident or the group. It is empty if no console is configured.
func (p Page) link() string {
	if p.Console == "" {
		return ""
	}
	query := url.Values{"id": {strconv.FormatInt(p.IncidentID, 10)}}
	if !p.isSingle() {
		query = url.Values{"kind": {string(p.Kind)}}
		if provider, isPlain := p.plainProvider(); isPlain && !spansProviders(p.Kind) {
			query.Set("provider", provider)
		}
	}
	return strings.TrimSuffix(p.Console, "/") + "/incidents?" + query.Encode()
}

// spansProviders reports whether incidents of all providers form one group. Agents can make up names of providers that
// are not configured, and each name would be a page.
func spansProviders(kind incident.Kind) bool { return kind == incident.UnconfiguredProvider }

func (p Page) provider() string {
	provider, _, _ := strings.Cut(p.tool(), "/")
	return provider
}

func (p Page) operation() string {
	provider, operation, slashed := strings.Cut(p.tool(), "/")
	if !slashed && p.IntentID != 0 { // a tool without a slash: its operation has the provider's name
		return provider
	}
	return operation
}

// tool returns the tool's name in plain letters. Any agent that can enqueue chooses the name, and chat clients and
// pagers turn some letters into links, mentions and bold text. They could take a name with a dot for a host.
func (p Page) tool() string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("_-/", r):
			return r
		case r == '.':
			return '·'
		}
		return '?'
	}, p.ToolName)
}

// maxBy bounds the letters of an operator's name.
const maxBy = 100

// by returns the operator's name as one line, without letters that would end code in Slack.
func (p Page) by() string {
	letters := []rune(p.By)
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || strings.ContainsRune("*`", r) {
			return '?'
		}
		return r
	}, string(letters[:min(len(letters), maxBy)]))
}

// details holds the fields of a page for programs.
type details struct {
	Count          int           `json:"count"`
	IncidentID     int64         `json:"incident_id"`
	Generation     int           `json:"generation"`
	DedupKey       string        `json:"dedup_key"`
	State          State         `json:"state"`
	Kind           incident.Kind `json:"kind"`
	Provider       string        `json:"provider,omitempty"`
	Operation      string        `json:"operation,omitempty"`
	IntentID       int64         `json:"intent_id,omitempty"`
	IdempotencyKey string        `json:"idempotency_key,omitempty"`
	OpenedAt       time.Time     `json:"opened_at"`
	By             string        `json:"by,omitempty"`
	Summary        string        `json:"summary"`
	Todo           []string      `json:"todo,omitempty"`
	Link           string        `json:"link,omitempty"`
}

func (p Page) details() details {
	return details{
		Count: max(p.Count, 1), IncidentID: p.IncidentID, Generation: p.Generation, DedupKey: p.DedupKey(), State: p.State, Kind: p.Kind,
		Provider: p.provider(), Operation: p.operation(), IntentID: p.IntentID, IdempotencyKey: p.IdempotencyKey,
		OpenedAt: p.OpenedAt.UTC(), By: p.by(), Summary: p.Summary(), Todo: p.Todo(), Link: p.link(),
	}
}

// Channel is one way to reach a human.
type Channel struct {
	Name   string         // in the table, in metrics and in logs
	Match  incident.Match // the incidents that it gets
	Repeat time.Duration  // how often the page about a group that stays open is repeated
	// Console is the console's URL in browsers, to which pages link. Empty: pages have no link.
	Console string
	Sender  Sender
}

// Sender sends one page. It returns nil once the other side has accepted the page. Its errors contain neither a
// secret nor a URL.
type Sender interface {
	Send(context.Context, Page) error
}
