package conformance

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Seen is one dispatch as its caller saw it.
type Seen struct {
	Result  dispatch.Result
	Took    time.Duration
	Hung    bool   // it had not returned when patience ended; nothing else is known
	Panic   string // what it panicked with; empty if it did not
	Changed bool   // the request was not what it had been
	Request dispatch.Request
}

// observe dispatches and waits no longer than patience. What the adapter
// starts belongs to owner.
func observe(ctx context.Context, adapter dispatch.Adapter, request dispatch.Request, owner owner, patience time.Duration) Seen {
	before := copied(request)
	ended := make(chan Seen, 1)
	start := time.Now()
	go owner.do(ctx, func(ctx context.Context) {
		seen := Seen{Request: before}
		defer func() {
			if cause := recover(); cause != nil {
				seen.Panic = fmt.Sprint(cause)
			}
			seen.Took, seen.Changed = time.Since(start), !same(request, before)
			ended <- seen
		}()
		seen.Result = adapter.Dispatch(ctx, request)
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case seen := <-ended:
		return seen
	case <-timer.C:
		return Seen{Request: before, Took: patience, Hung: true}
	}
}

func copied(request dispatch.Request) dispatch.Request {
	request.Payload = bytes.Clone(request.Payload)
	request.Headers = maps.Clone(request.Headers)
	return request
}

func same(a, b dispatch.Request) bool {
	return bytes.Equal(a.Payload, b.Payload) && maps.Equal(a.Headers, b.Headers)
}

// ended reports whether it ended as one of those.
func (s Seen) ended(as ...dispatch.Outcome) bool {
	return !s.Hung && s.Panic == "" && slices.Contains(as, s.Result.Outcome)
}

// String is the end of a dispatch in a few words: "ambiguous, timeout".
func (s Seen) String() string {
	switch {
	case s.Hung:
		return fmt.Sprintf("no return within %s", s.Took.Round(time.Millisecond))
	case s.Panic != "":
		return "a panic"
	case s.Result.ErrorClass != "":
		return string(s.Result.Outcome) + ", " + s.Result.ErrorClass
	case s.Result.Replayed:
		return string(s.Result.Outcome) + ", replayed"
	}
	return string(s.Result.Outcome)
}
