package replay

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/google/uuid"

	"github.com/agentoutbox/drainer/dispatch"
)

// Subject is the tool to be tested.
type Subject struct {
	Tool    string // by its full name: provider/operation
	Class   dispatch.Class
	Adapter dispatch.Adapter
}

// Plan says what to call it with.
type Plan struct {
	Payload    json.RawMessage
	Other      json.RawMessage // another payload for the same key; nil asks nothing about it
	Concurrent int             // calls at once with one key
}

// ErrNothingPromised says that the tool's class promises nothing of repeated
// calls: each would have its effect.
var ErrNothingPromised = errors.New("the tool is non_idempotent: each call would have its effect, and there is nothing to verify")

// Calls is the most that Run calls the provider.
func (p Plan) Calls() int {
	calls := 2 + p.Concurrent
	if p.Other != nil {
		calls++
	}
	return calls
}

// Run calls the provider and reports. Each run has keys of its own, so it can
// be repeated. It stops after a first call that does not succeed: what follows
// would prove nothing.
func Run(ctx context.Context, subject Subject, plan Plan) (Report, error) {
	if subject.Class == dispatch.NonIdempotent {
		return Report{}, ErrNothingPromised
	}
	alone := freshTuple(subject.Tool, "alone")
	seen := evidence{first: subject.call(ctx, "first", alone, plan.Payload)}
	if seen.first.Outcome == dispatch.Completed {
		again := subject.call(ctx, "again", alone, plan.Payload)
		seen.again = &again
		if plan.Other != nil && subject.Class == dispatch.KeyIdempotent {
			other := subject.call(ctx, "other payload", alone, plan.Other)
			seen.other = &other
		}
		if subject.Class != dispatch.ReadOnly {
			seen.atOnce = subject.callAtOnce(ctx, plan)
		}
	}
	return report(subject, seen), nil
}

// freshTuple identifies an intent that nobody had before.
func freshTuple(tool, step string) dispatch.Tuple {
	return dispatch.Tuple{AgentRunID: "verify-replay-" + uuid.NewString(), StepID: step, ToolName: tool, BusinessScope: "verify-replay"}
}

func (s Subject) call(ctx context.Context, step string, tuple dispatch.Tuple, payload json.RawMessage) Call {
	result := s.Adapter.Dispatch(ctx, dispatch.Request{
		Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: payload, Attempt: 1,
	})
	return Call{
		Step: step, Outcome: result.Outcome, HTTPStatus: result.HTTPStatus, Error: result.ErrorClass,
		Replayed: result.Replayed, ProviderRef: result.ProviderRef, body: result.Response,
	}
}

// callAtOnce starts all calls together, with one key.
func (s Subject) callAtOnce(ctx context.Context, plan Plan) []Call {
	together := freshTuple(s.Tool, "together")
	calls := make([]Call, plan.Concurrent)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			<-start
			calls[i] = s.call(ctx, "at once", together, plan.Payload)
		})
	}
	close(start)
	group.Wait()
	return calls
}
