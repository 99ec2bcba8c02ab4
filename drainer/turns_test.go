package drainer

import (
	"slices"
	"testing"
)

func TestTenantsTakeTurnsByWeight(t *testing.T) {
	t.Parallel()
	var waiting turns
	put := func(first int64, tenants ...int16) {
		for i, tenant := range tenants {
			waiting.put(&Row{IntentID: first + int64(i), Tenant: tenant, Weight: map[int16]int{1: 2}[tenant]})
		}
	}
	take := func(rows int) (order []int64) {
		for range rows {
			order = append(order, waiting.take().IntentID)
		}
		return order
	}
	put(0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
	if got, want := take(5), []int64{0, 1, 8, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
	put(10, 3) // it does not wait for all that was claimed before
	if got := take(5); slices.Index(got, 9) != 0 || slices.Index(got, 10) < 2 || slices.Index(got, 10) > 3 {
		t.Errorf("taken in the order %v, want 9 first and 10 in its turn", got)
	}
	take(1)
	if waiting.len() != 0 || waiting.take() != nil {
		t.Errorf("%d rows wait", waiting.len())
	}
	put(11, 3, 3)
	if got, want := take(2), []int64{11, 12}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %v, want %v", got, want)
	}
}

// A tenant that always has a row waiting takes no more room for it than one whose rows run out.
func TestALineThatNeverEndsTakesNoMoreRoom(t *testing.T) {
	t.Parallel()
	var waiting turns
	waiting.put(&Row{IntentID: 0})
	for id := int64(1); id <= 100_000; id++ {
		waiting.put(&Row{IntentID: id})
		if row := waiting.take(); row.IntentID != id-1 {
			t.Fatalf("row %d is taken, want %d", row.IntentID, id-1)
		}
	}
	if room := cap(waiting.of[0].rows); room > 1000 {
		t.Errorf("one row waits, and there is room for %d", room)
	}
}
