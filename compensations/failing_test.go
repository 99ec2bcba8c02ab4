package compensations_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
)

func TestAPassThatFailsChangesNothingAndIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fails         string
		breaks, mends string
	}{
		{"lock the saga", `ALTER TABLE outbox.saga RENAME TO away`, `ALTER TABLE outbox.away RENAME TO saga`},
		{"stop what waits", `ALTER TABLE outbox.queue RENAME TO away`, `ALTER TABLE outbox.away RENAME TO queue`},
		{"read the run's steps", `ALTER VIEW outbox.status RENAME TO away`, `ALTER VIEW outbox.away RENAME TO status`},
		{"hold the steps", `ALTER FUNCTION outbox.hold RENAME TO away`, `ALTER FUNCTION outbox.away RENAME TO hold`},
		{"enqueue an undo", `ALTER TABLE outbox.intent RENAME headers TO away`, `ALTER TABLE outbox.intent RENAME away TO headers`},
	} {
		t.Run(test.fails, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.completed("shop/order", 1)
			w.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id = $1`, w.enqueue("waiting", "shop/find"))
			w.rejected()
			w.exec(test.breaks)
			if err := w.saga.Advance(t.Context(), "run-1"); err == nil || !strings.HasPrefix(err.Error(), test.fails+": ") {
				t.Errorf("it says %v, want that it could not %s", err, test.fails)
			}
			w.exec(test.mends)
			w.assertSaga("begun")
			w.assertStatuses("completed", "pending", "failed")
			w.goBack()
			w.assertSaga("compensated")
		})
	}
}

// A process that stops in the middle of a slow mapping has not found it wrong.
func TestAPayloadThatIsCutOffFailsNoSaga(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	endless := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "last(repeat(1))"})}}
	use, err := w.saga.Prepare(endless)
	if err != nil {
		t.Fatal(err)
	}
	use()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // an expression gets a second
	defer cancel()
	if err := w.saga.Advance(ctx, "run-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says %v, want that the time was up", err)
	}
	w.assertSaga("begun")
	w.assertIncidents()
}

func TestASagaOfAnUnknownToolWaitsAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := w.completed("shop/order", 1)[0]
	w.rejected()
	var said strings.Builder
	saga, err := compensations.New(w.db, nil, slog.New(slog.NewTextHandler(&said, nil)), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := saga.Advance(t.Context(), "run-1"); err != nil {
			t.Fatal(err)
		}
	}
	w.assertSaga("begun")
	if lines := strings.Count(said.String(), "\n"); lines != 1 || !strings.Contains(said.String(), "a saga waits for a process that knows a tool") {
		t.Errorf("in 3 passes over step %d it says\n%s", step, said.String())
	}
	w.goBack() // whoever knows the tool
	w.assertSaga("compensated")
}

func TestAReversalThatDoesNotCompileIsRefusedByItsTool(t *testing.T) {
	t.Parallel()
	broken := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{"})}}
	_, err := compensations.New(nil, broken, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil || !strings.HasPrefix(err.Error(), "shop/order: payload of an undo: ") {
		t.Errorf("it says %v", err)
	}
}

func TestARunWithoutASagaIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.enqueue("waiting", "shop/order")
	w.advance()
	w.assertStatuses("completed", "pending")
}
