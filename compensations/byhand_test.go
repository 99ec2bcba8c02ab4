package compensations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// A refund by hand must not be followed by another one, nor stand in the way of older steps.
func TestASagaGoesOnBeyondAStepThatWasUndoneByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := w.completed("shop/order", 2)
	w.rejected()
	w.shop.answer("shop/cancel", dispatch.Rejected)
	w.goBack()
	w.assertSaga("compensation_failed")

	conn, err := pgx.Connect(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	console := operator.Open(conn)
	defer console.Close(t.Context())
	if err := console.RetrySaga(t.Context(), "run-1", steps[1:], operator.Signature{Operator: "ann", Reason: "refunded by hand"}); err != nil {
		t.Fatal(err)
	}
	w.shop.answer("shop/cancel", dispatch.Completed)
	w.goBack()
	w.assertSaga("compensated")
	w.assertStatuses("compensated", "compensated", "failed")
	w.assertUndone("shop/cancel", steps[1], steps[0])
	w.assertIncidents()
}
