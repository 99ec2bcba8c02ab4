// Package dispatch holds what an effect is made of, free of any database: the
// key of an intent, the adapter that carries it to a provider, the outcome
// that the adapter saw, and the decision that follows from it.
//
//	Request ──Adapter.Dispatch──▶ Result ──Policy.Decide──▶ Decision
//
// An adapter reports evidence and nothing else; a Policy decides and does
// nothing else. The engine in package drainer stands between the two.
package dispatch

import (
	"context"
	"encoding/json"
	"time"
)

// Request is one attempt at an intent, as an adapter sees it. An adapter
// reads it and changes nothing in it.
type Request struct {
	Tuple          Tuple
	IdempotencyKey string            // the same on every attempt
	Payload        json.RawMessage   // what the agent asked for
	Headers        map[string]string // the agent's; traceparent is the attempt's own where it is traced
	Attempt        int               // 1 for the first
	ProviderRef    string            // for a lookup: what an earlier attempt brought, if it did
}

// Result is the adapter's report of one attempt. Everything in it is stored and
// shown to operators, so ErrorClass names the kind of a failure and never
// carries a payload, a URL or a credential.
type Result struct {
	Outcome         Outcome
	Final           bool          // no repetition under this key can bring another answer, e.g. a replayed 500
	HTTPStatus      int           // 0 where the protocol has none
	ErrorClass      string        // short and stable, e.g. "timeout", "dial", "http_503"
	RetryAfter      time.Duration // the provider's wish; a floor for the delay
	Unsent          bool          // this side refused what the intent asks for, and wrote no byte of it: no provider said no
	Healthy         bool          // the trouble is this intent's alone: the provider could serve others
	Replayed        bool          // the provider said it had seen the key before
	ProviderRef     string        // the provider's own id of the effect
	Response        json.RawMessage
	ResponseHeaders map[string]string
	Problem         *Problem // a failure in words: the provider's own, or this side's where it has none
}

// Problem holds the fields of RFC 9457 Problem Details that are kept on an
// attempt.
type Problem struct {
	Type   string `json:"type,omitempty"`
	Title  string `json:"title,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Adapter speaks one provider's protocol. It makes exactly one attempt and
// reports the evidence; retrying, deciding and recording happen around it.
//
// Dispatch is called concurrently. It must return soon after ctx ends, and
// may panic only by mistake: the caller turns a panic into Ambiguous.
type Adapter interface {
	Dispatch(ctx context.Context, request Request) Result
}

// Greeter is an [Adapter] that speaks with its counterpart before it can
// dispatch: it starts a child, or asks for a hello or a session. Greet does
// that and sends no intent, so that drainer verify can try it. Its result is
// completed, or not_sent with an error class; Problem.Title then names the
// operation that the counterpart does not offer as it is configured.
type Greeter interface {
	Greet(ctx context.Context) Result
}
