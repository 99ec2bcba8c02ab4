package pages

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

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

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{OutcomeUnknown, CompensationFailed, ReversalWindowExpired, KeyCollision, UnconfiguredProvider, SagaStalled, RefusedIntent, UnknownOperation, FirstReplay, CredentialsRefused, Forbidden, Misconfigured}
}

// meaning explains a kind to an operator who was just woken up.
var meaning = map[Kind]string{
	OutcomeUnknown:        "it is not known whether this effect happened",
	CompensationFailed:    "this step could not be undone",
	ReversalWindowExpired: "it is too late to undo this step",
	KeyCollision:          "an agent enqueued another payload under the key of this intent, and was refused",
	UnconfiguredProvider:  "this intent and maybe others wait for a provider that no drainer serves",
	SagaStalled:           "three passes over the saga of this run did not end: the process died or stood still, or the database refused the undo",
	RefusedIntent:         "this intent was refused before it reached its provider; its run goes on",
	UnknownOperation:      "this intent and maybe others wait for an operation that their provider does not have",
	CredentialsRefused:    "this intent and maybe others wait because their provider refuses the credentials",
	Forbidden:             "this intent and maybe others wait because their provider forbids this operation",
	Misconfigured:         "this intent and maybe others wait because no request could be made of any intent of this operation",
	FirstReplay:           "the provider had seen the key of this intent before its first attempt: what it calls completed may be another intent's effect",
}

// remedy lists the commands, beside looking and acknowledging, that lead out of
// it. A collision and a first replay have no other: acknowledging ends them.
var remedy = map[Kind][]string{
	OutcomeUnknown:        {"drainer intents resolve INTENT --as completed|failed --reason TEXT"},
	CompensationFailed:    sagaRemedy,
	ReversalWindowExpired: sagaRemedy,
	SagaStalled:           sagaRemedy,
	RefusedIntent:         {"drainer intents retry INTENT --config FILE --reason TEXT"},
	UnknownOperation:      {"drainer status", "drainer intents cancel INTENT --reason TEXT"},
	CredentialsRefused:    configurationRemedy,
	Forbidden:             configurationRemedy,
	Misconfigured:         configurationRemedy,
	UnconfiguredProvider:  {"drainer status", "drainer intents cancel INTENT --reason TEXT"},
}

var configurationRemedy = []string{"drainer providers list", "drainer providers resume PROVIDER --reason TEXT"}

var sagaRemedy = []string{
	"drainer sagas show --intent INTENT",
	"drainer sagas retry --intent INTENT --reason TEXT",
	"drainer sagas resolve --intent INTENT --reason TEXT",
}

// State is where an incident stands.
type State string

// An incident is open until an operator acknowledges it, and resolved once
// its cause is gone, whichever comes first.
const (
	Open         State = "open"
	Acknowledged State = "acknowledged"
	Resolved     State = "resolved"
)

// Page is the message about an incident to a channel. It names the intent by its
// number and its key, a hash, and shows nothing of what the agent wrote but the
// tool's name.
type Page struct {
	IncidentID     int64
	Generation     int // how often the incident was opened
	State          State
	Kind           Kind
	IntentID       int64
	ToolName       string
	IdempotencyKey string
	OpenedAt       time.Time
	By             string // who acknowledged or resolved it, if any operator did
	Sends          int    // how often this channel was sent something of it before
}

// DedupKey is one opening of one incident, the same in every page about it. The
// intent's key keeps several outboxes that share a pager apart.
func (p Page) DedupKey() string {
	return fmt.Sprintf("outbox-incident-%d-%d-%s", p.IncidentID, p.Generation, p.IdempotencyKey)
}

// MessageID is one message: the next one, a repetition or other news, has
// another.
func (p Page) MessageID() string {
	return fmt.Sprintf("%s-%s-%d", p.DedupKey(), p.State, p.Sends)
}

// Summary is one line.
func (p Page) Summary() string { return p.summary(p.tool()) }

func (p Page) summary(tool string) string {
	return fmt.Sprintf("%s: %s (%s, intent %d)", p.Kind, meaning[p.Kind], tool, p.IntentID)
}

// Todo lists what to type while no operator has taken the incident.
func (p Page) Todo() []string {
	if p.State != Open {
		return nil
	}
	intent := strconv.FormatInt(p.IntentID, 10)
	todo := []string{"drainer intents show " + intent}
	for _, command := range remedy[p.Kind] {
		todo = append(todo, strings.NewReplacer("INTENT", intent, "PROVIDER", p.provider()).Replace(command))
	}
	return append(todo, fmt.Sprintf("drainer incidents ack %d --reason TEXT", p.IncidentID))
}

func (p Page) provider() string {
	provider, _, _ := strings.Cut(p.tool(), "/")
	return provider
}

func (p Page) operation() string {
	provider, operation, slashed := strings.Cut(p.tool(), "/")
	if !slashed {
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
	IncidentID     int64     `json:"incident_id"`
	Generation     int       `json:"generation"`
	DedupKey       string    `json:"dedup_key"`
	State          State     `json:"state"`
	Kind           Kind      `json:"kind"`
	Provider       string    `json:"provider"`
	Operation      string    `json:"operation"`
	IntentID       int64     `json:"intent_id"`
	IdempotencyKey string    `json:"idempotency_key"`
	OpenedAt       time.Time `json:"opened_at"`
	By             string    `json:"by,omitempty"`
	Summary        string    `json:"summary"`
	Todo           []string  `json:"todo,omitempty"`
}

func (p Page) details() details {
	return details{
		IncidentID: p.IncidentID, Generation: p.Generation, DedupKey: p.DedupKey(), State: p.State, Kind: p.Kind,
		Provider: p.provider(), Operation: p.operation(), IntentID: p.IntentID, IdempotencyKey: p.IdempotencyKey,
		OpenedAt: p.OpenedAt.UTC(), By: p.by(), Summary: p.Summary(), Todo: p.Todo(),
	}
}

// Channel is one way to reach a human.
type Channel struct {
	Name   string        // in the table, in metrics and in logs
	Repeat time.Duration // how often it hears of an incident that stays open
	Sender Sender
}

// Sender delivers one page; nil says that the other side has taken it. An error
// shows neither an address nor a secret.
type Sender interface {
	Send(context.Context, Page) error
}
