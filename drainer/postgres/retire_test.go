package postgres_test

import (
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestARetiredWorkerKeepsItsClaimsAndTakesNoShare(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.enqueue("run", 0, 1)
	retired, stays := o.join(), o.join()
	rows := o.claim(retired, 1)
	if err := o.Retire(t.Context(), retired); err != nil {
		t.Fatal(err)
	}
	gates, err := o.Gates(t.Context(), stays)
	if err != nil || len(gates) != 1 || gates[0].Workers != 1 || gates[0].Rank != 0 {
		t.Errorf("%v: the one that stays shares with others: %+v", err, gates)
	}
	if lost := o.reap(); len(lost) != 0 {
		t.Errorf("%d of its rows were taken for lost", len(lost))
	}
	if alive, err := o.Beat(t.Context(), retired); err != nil || !alive {
		t.Errorf("it cannot beat any more: %v", err)
	}
	if reply := o.settle(retired, dispatch.Completed, rows...); len(reply.Refused) != 0 {
		t.Error("it cannot settle any more")
	}
	o.assertStatuses(map[string]int{"completed": 1})
}
