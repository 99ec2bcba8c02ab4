package conformance

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Subject is an adapter, and how to find somebody for it to talk to.
type Subject struct {
	Kind   dispatch.Kind
	Class  dispatch.Class       // of the tool under test; if empty, key_idempotent or the most that Kind can promise
	Start  func() Counterpart   // a fresh and real counterpart
	Cannot map[Situation]string // situations that the protocol does not know, each with its reason

	// Patience is how long anything may take that nothing holds up; 10 s if
	// zero. A tenth of it is the deadline of a request that nobody answers,
	// a quarter what "soon" means.
	Patience time.Duration
}

// Counterpart is the other side of the protocol.
type Counterpart struct {
	Settings string // the provider's block, as YAML
	Tool     string // the tool's block, as YAML
	Payload  json.RawMessage
	Exact    json.RawMessage // optional: another payload that it accepts, whose numbers must arrive digit for digit
	TLS      *tls.Config     // optional: what TLS sessions begin with, e.g. with the counterpart's authority
	Secrets  []string        // what stands in the blocks and must show nowhere

	// Received is what arrived so far, in any order: every request, whatever
	// became of it.
	Received func() []Message
	// Enter returns once the counterpart behaves so, to what comes from now on.
	Enter func(Situation)
}

// Message is a request that arrived. Body leaves out what the protocol numbers
// or dates anew each time, so that it is the same for the same request.
type Message struct {
	Key  string // the idempotency key, as the protocol carries it; empty if it carries none
	Body []byte
}

// problem is what the kit cannot do without.
func (c Counterpart) problem() string {
	switch {
	case c.Received == nil:
		return "no Received"
	case c.Enter == nil:
		return "no Enter"
	case c.Payload == nil:
		return "no Payload"
	}
	return ""
}

const (
	provider  = "subject"
	operation = "act"
)

func (s Subject) class() dispatch.Class {
	if s.Class != "" {
		return s.Class
	}
	if s.Kind.Classes == nil || slices.Contains(s.Kind.Classes, dispatch.KeyIdempotent) {
		return dispatch.KeyIdempotent
	}
	return slices.MaxFunc(s.Kind.Classes, func(a, b dispatch.Class) int {
		return cmp.Compare(slices.Index(byPromise, a), slices.Index(byPromise, b))
	})
}

// byPromise goes from the least that a class promises to the most that an
// adapter can do for it.
var byPromise = []dispatch.Class{dispatch.NonIdempotent, dispatch.ReadOnly, dispatch.NaturallyIdempotent, dispatch.KeyIdempotent}

func (s Subject) carriesKeys() bool { return s.class() == dispatch.KeyIdempotent }

func (s Subject) patience() time.Duration { return cmp.Or(s.Patience, 10*time.Second) }

// soon is how long it may take to notice an end.
func (s Subject) soon() time.Duration { return s.patience() / 4 }

// moment is enough for a request to leave, and the deadline where nobody answers.
func (s Subject) moment() time.Duration { return s.patience() / 10 }

func (s Subject) spec(c Counterpart, timeout time.Duration, network dispatch.Network) dispatch.Spec {
	tool := dispatch.ToolSpec{Class: s.class(), Settings: Block(c.Tool)}
	if s.carriesKeys() {
		tool.KeyTTL = 24 * time.Hour
	}
	return dispatch.Spec{
		Provider: provider,
		Timeout:  timeout,
		Network:  network,
		Settings: Block(c.Settings),
		Tools:    map[string]dispatch.ToolSpec{operation: tool},
	}
}
