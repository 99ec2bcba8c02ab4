package integration_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// odd is an adapter that misbehaves at every tenth intent.
type odd struct {
	misbehave func() dispatch.Result
}

func (o odd) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	var payload struct{ N int }
	if err := json.Unmarshal(request.Payload, &payload); err != nil {
		return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload"}
	}
	if payload.N%10 == 0 {
		return o.misbehave()
	}
	return dispatch.Result{Outcome: dispatch.Completed, Response: json.RawMessage(`{"id": "good"}`)}
}

func (o odd) provider(class dispatch.Class) drainer.Provider {
	return drainer.Provider{
		Name: "sim", Adapter: o, Concurrency: 4, Timeout: drainertest.Patience,
		Tools: map[string]dispatch.Policy{"act": quickPolicy(class, 2)},
	}
}

func TestAResponseThatCannotBeStoredIsLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.enqueue("sim/act", 0, 100)
	drainOnce(t, w.url, odd{func() dispatch.Result {
		return dispatch.Result{Outcome: dispatch.Completed, Response: json.RawMessage("{\"id\": \"\\u0000\"}")}
	}}.provider(dispatch.KeyIdempotent))
	drainertest.AssertInvariant(t, w.db)
	if got := w.count("completed"); got != 100 {
		t.Errorf("%d completed, want all 100", got)
	}
	if kept := stored[int](w, `SELECT count(*) FROM outbox.status WHERE response ->> 'id' = 'good'`); kept != 90 {
		t.Errorf("%d good responses are kept, want 90", kept)
	}
	if noted := stored[int](w, `SELECT count(*) FROM outbox.status WHERE response IS NULL AND last_error = 'unstorable_response'`); noted != 10 {
		t.Errorf("%d intents say why their response is missing, want 10", noted)
	}
	w.assertNoClaims()
}

func TestAnAdapterThatPanicsIsAmbiguous(t *testing.T) {
	t.Parallel()
	for class, want := range map[dispatch.Class]int{dispatch.KeyIdempotent: 20, dispatch.NonIdempotent: 10} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.enqueue("sim/act", 0, 100)
			daemon := odd{func() dispatch.Result { panic("broken") }}.provider(class)
			// Once ends when nothing is due, which a retry may not yet be.
			for w.count("pending") > 0 {
				drainOnce(t, w.url, daemon)
			}
			panics := stored[int](w, `SELECT count(*) FROM outbox.attempt WHERE error = 'panic'`)
			fault.Injected(t, 15, panics)
			drainertest.AssertInvariant(t, w.db)
			if done, unknown := w.count("completed"), w.count("unknown"); done != 90 || unknown != 10 {
				t.Errorf("%d completed and %d unknown, want 90 and 10", done, unknown)
			}
			if panics != want {
				t.Errorf("%d attempts panicked, want %d", panics, want)
			}
		})
	}
}
