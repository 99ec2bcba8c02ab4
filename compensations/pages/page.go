package pages

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// State is where an incident stands.
type State string

// An incident is open until somebody says that they have it, and resolved once
// its cause is gone, whichever comes first.
const (
	Open         State = "open"
	Acknowledged State = "acknowledged"
	Resolved     State = "resolved"
)

// Page is what a channel is told of an incident. It names the intent by its
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
	By             string // who acknowledged or resolved it, if anybody
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
func (p Page) Summary() string {
	return fmt.Sprintf("%s: %s (%s, intent %d)", p.Kind, meaning[p.Kind], p.tool(), p.IntentID)
}

// Todo lists what to type while the incident is nobody's.
func (p Page) Todo() []string {
	if p.State != Open {
		return nil
	}
	intent := strconv.FormatInt(p.IntentID, 10)
	todo := []string{"drainer intents show " + intent}
	for _, command := range remedy[p.Kind] {
		todo = append(todo, strings.ReplaceAll(command, "INTENT", intent))
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

// tool is one line, read in one direction: whoever can enqueue writes the name,
// and must not write the page.
func (p Page) tool() string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, p.ToolName)
}

// details are the page for programs.
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
		OpenedAt: p.OpenedAt.UTC(), By: p.By, Summary: p.Summary(), Todo: p.Todo(),
	}
}
