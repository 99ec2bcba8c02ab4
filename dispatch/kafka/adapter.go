// Package kafka is the Kafka adapter. A provider is a cluster, a tool is a topic, and an effect is one record in
// that topic.
//
//	Request ──tool.record──▶ record ──publish──▶ answer ──judge──▶ Result
//
// One dispatch sends at most one Produce request, with one record, and waits until all in-sync replicas have it. The
// adapter buffers no record and repeats none by itself: after the end of an attempt, the attempt writes nothing
// more.
//
// The record carries the idempotency key in the header idempotency-key. No broker reads that header. If the
// acknowledgement of a record was lost, the next attempt sends the record again, and the consumers must recognise
// the second record as a repetition.
package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Kind registers the adapter as "kafka". A record is an effect, so no tool can be read_only. key_idempotent is a
// promise of the consumers: they recognise a repeated record for the ttl of the key.
func Kind() dispatch.Kind {
	return dispatch.Kind{
		Name:     "kafka",
		Classes:  []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.KeyIdempotent, dispatch.NonIdempotent},
		New:      func(spec dispatch.Spec) (dispatch.Adapter, error) { return New(spec) },
		Settings: Settings{},
		Tool:     Tool{},
	}
}

// Adapter dispatches to one cluster.
type Adapter struct {
	tools    map[string]*tool
	sessions *sessions
	leaders  *leaders
	timeout  time.Duration
	brokers  []dispatch.Destination
}

// New builds the adapter, or reports everything that is wrong with its
// configuration, joined. It connects to nothing.
func New(spec dispatch.Spec) (*Adapter, error) {
	settings, err := readSettings(spec.Settings)
	tools, toolsErr := adapter.Tools(spec.Tools, func(_ string, spec dispatch.ToolSpec) (*tool, error) { return newTool(spec) })
	if err := errors.Join(err, toolsErr); err != nil {
		return nil, err
	}
	return &Adapter{
		tools:    tools,
		sessions: &sessions{open: func() (*session, error) { return openSession(settings, spec.Network) }},
		leaders:  newLeaders(),
		timeout:  spec.Timeout,
		brokers:  destinations(settings),
	}, nil
}

// Dispatch sends one record and returns the result that the evidence proves.
func (a *Adapter) Dispatch(ctx context.Context, request dispatch.Request) dispatch.Result {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unconfigured_tool"}
	}
	ctx, cancel := adapter.Within(ctx, a.timeout)
	defer cancel()
	record, err := tool.record(ctx, request)
	if err != nil {
		return render.Refusal(ctx, err)
	}
	return a.publish(ctx, record)
}

// Close ends the sessions. No dispatch may be running.
func (a *Adapter) Close() error {
	a.sessions.close()
	return nil
}

// Destinations returns the brokers of the configuration. The adapter may also connect to other brokers of the
// cluster, whose addresses these send.
func (a *Adapter) Destinations() []dispatch.Destination { return a.brokers }

func destinations(settings Settings) []dispatch.Destination {
	use := dispatch.PlainText
	if settings.TLS {
		use = dispatch.ImplicitTLS
	}
	all := make([]dispatch.Destination, len(settings.Brokers))
	for i, broker := range settings.Brokers {
		all[i] = dispatch.Destination{Network: "tcp", Address: broker, TLS: use}
	}
	return all
}
