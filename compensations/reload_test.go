package compensations_test

import (
	"maps"
	"testing"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/dispatch"
)

func TestASagaGoesByThePoliciesThatAreInForceAtItsPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	other := maps.Clone(tools)
	other["order"] = keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{reason: \"reloaded\"}"})
	use, err := w.saga.Prepare(compensations.Policies{"shop": other})
	if err != nil {
		t.Fatal(err)
	}
	use()
	w.goBack()
	w.assertSaga("compensated")
	if undo := w.shop.calls[len(w.shop.calls)-1]; string(undo.Payload) != `{"reason": "reloaded"}` {
		t.Errorf("the undo's payload is %s, want that of the newer policies", undo.Payload)
	}
}

func TestPoliciesThatAreOnlyPreparedOrDoNotCompileChangeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.completed("shop/order", 1)
	w.rejected()
	if _, err := w.saga.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	broken := compensations.Policies{"shop": {"order": keyed(dispatch.Reversal{Tool: "shop/cancel", Payload: "{"})}}
	if _, err := w.saga.Prepare(broken); err == nil {
		t.Error("a payload that does not compile was taken")
	}
	w.goBack()
	w.assertSaga("compensated")
}
