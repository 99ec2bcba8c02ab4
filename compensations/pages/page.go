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

// remedy lists the commands, beside looking and acknowledging, that lead out of
// it. A collision and a first replay have no other, as acknowledging ends them. It
// ends a refused intent, too.
var remedy = map[incident.Kind][]string{
	// The plain retry is refused where it is not safe; what is safe comes first.
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

// State is where an incident or a group stands.
type State string

// An incident is open until an operator acknowledges it, and resolved once
// its cause is gone, whichever comes first. A group is open while any of its
// incidents is, and resolved once all are.
const (
	Open         State = "open"
	Acknowledged State = "acknowledged"
	Resolved     State = "resolved"
)

// Page is the message to a channel about a group: the incidents of one kind at one
// provider that are open at one time. The first of them, as the group was opened, names
// it. The page names that one's intent by its number and its key, a hash, and shows
// nothing of what the agent wrote but the tool's name.
type Page struct {
	Outbox         string // keeps several outboxes that share a pager apart
	IncidentID     int64  // the first
	Generation     int    // how often the first was opened
	State          State  // of the group
	Kind           incident.Kind
	IntentID       int64  // 0: the incident is about none, or it is not known any more; there is no key
	ToolName       string // or a provider's; empty: it is not known any more, or the incident is about the whole outbox
	IdempotencyKey string
	OpenedAt       time.Time
	By             string    // who acknowledged or resolved the first, if any operator did
	Count          int       // how many incidents are open; those told of last, where none is
	FirstIsOver    bool      // acknowledged or resolved: it is others that are open
	Newest         time.Time // when the last of them was opened
	Sends          int       // how often this channel was sent something of the group before
	Console        string    // its URL in browsers; empty: the page links to nothing
	IsNarrow       bool      // the channel's match leaves out incidents of the same kind and provider
}

// isSingle says that the page is about its first incident and no other.
func (p Page) isSingle() bool { return p.Count <= 1 && (!p.FirstIsOver || p.State != Open) }

// DedupKey is one opening of one group, the same in every page about it. The intent's
// key is no part of it: an operator may give the intent another one.
func (p Page) DedupKey() string {
	return fmt.Sprintf("outbox-incident-%s-%d-%d", p.Outbox, p.IncidentID, p.Generation)
}

// MessageID is one message: the next one, a repetition or other news, has
// another.
func (p Page) MessageID() string {
	return fmt.Sprintf("%s-%s-%d", p.DedupKey(), p.State, p.Sends)
}

// Summary is one line.
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

// Todo lists what to type while an incident is open.
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

// chosen are the flags that choose the incidents of the group, and whether they choose
// no others. A shell would take another provider's name apart.
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

// plainProvider has letters that neither a shell nor a link takes apart.
func (p Page) plainProvider() (provider string, is bool) {
	provider, _, _ = strings.Cut(p.ToolName, "/")
	return provider, provider != "" && provider == p.provider() && !strings.HasPrefix(provider, "-")
}

// link is where the console shows the incident or the group; empty where no console is known.
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

// spansProviders says that the group is of every provider: agents make up the names of
// those, and each would be a page.
func spansProviders(kind incident.Kind) bool { return kind == incident.UnconfiguredProvider }

func (p Page) provider() string {
	provider, _, _ := strings.Cut(p.tool(), "/")
	return provider
}

func (p Page) operation() string {
	provider, operation, slashed := strings.Cut(p.tool(), "/")
	if !slashed && p.IntentID != 0 { // agents may leave out the slash
		return provider
	}
	return operation
}

// tool is the name in plain letters. Any agent that can enqueue writes it, and chat
// clients and pagers make links, mentions and bold text of what they find. A name
// with a dot could be taken for a host.
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

// maxBy bounds the letters of a name that an operator states.
const maxBy = 100

// by is one line, and ends no code of Slack's.
func (p Page) by() string {
	letters := []rune(p.By)
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || strings.ContainsRune("*`", r) {
			return '?'
		}
		return r
	}, string(letters[:min(len(letters), maxBy)]))
}

// details are the fields of a page that programs read.
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
	Match  incident.Match // what it gets
	Repeat time.Duration  // how often it hears of a group that stays open
	// Console is its URL in browsers, to which pages link. Empty: they do not.
	Console string
	Sender  Sender
}

// Sender delivers one page; nil says that the other side has taken it. An error
// shows neither an address nor a secret.
type Sender interface {
	Send(context.Context, Page) error
}
