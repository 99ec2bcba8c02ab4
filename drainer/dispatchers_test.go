package drainer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const dispatchersThere = 3

// heldUp are dispatchers each of whom waits for a release with every row.
type heldUp struct {
	dispatchers

	t       *testing.T
	begun   chan struct{}
	release chan struct{}
	busy    atomic.Int64
}

func holdUp(t *testing.T) *heldUp {
	t.Helper()
	h := &heldUp{t: t, begun: make(chan struct{}, 100), release: make(chan struct{})}
	h.jobs = make(chan *Row, 100)
	h.assemble(dispatchersThere, func() {
		for row := h.next(); row != nil; row = h.next() {
			if h.busy.Add(1) > dispatchersThere {
				t.Errorf("more than %d dispatch at once", dispatchersThere)
			}
			h.begun <- struct{}{}
			<-h.release
			h.busy.Add(-1)
		}
	})
	return h
}

func (h *heldUp) awaitBegun(rows int) {
	h.t.Helper()
	for n := range rows {
		select {
		case <-h.begun:
		case <-time.After(10 * time.Second):
			h.t.Fatalf("%d of %d rows have begun, and no dispatcher came for another", n, rows)
		}
	}
}

func TestARowNeverWaitsBehindOneThatIsHeldUp(t *testing.T) {
	t.Parallel()
	h := holdUp(t)
	for range dispatchersThere {
		h.hand(&Row{})
	}
	h.awaitBegun(dispatchersThere)
	for range 10_000 { // one leaves or goes on while a row comes
		go func() { h.release <- struct{}{} }()
		h.hand(&Row{})
		h.awaitBegun(1)
	}
	close(h.release)
	h.all.Wait()
}

func TestNoMoreDispatchAtOnceThanMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 50
		h := holdUp(t)
		for range rows {
			h.hand(&Row{})
		}
		synctest.Wait()
		if h.busy.Load() != dispatchersThere || h.waiting() != rows-dispatchersThere {
			t.Errorf("%d dispatch and %d rows wait, want %d and %d", h.busy.Load(), h.waiting(), dispatchersThere, rows-dispatchersThere)
		}
		close(h.release)
		h.all.Wait()
		if h.waiting() != 0 {
			t.Errorf("%d rows wait, and nobody is there", h.waiting())
		}
	})
}

// The only dispatcher there may be has seen that there is no row, and has not left
// yet: nobody else can be called for the one that comes now.
func TestARowThatComesWhileTheLastDispatcherLeavesIsDispatched(t *testing.T) {
	t.Parallel()
	d := dispatchers{jobs: make(chan *Row, 2)}
	dispatched := 0
	d.assemble(1, func() {
		for d.next() != nil {
			dispatched++
		}
		if dispatched == 1 {
			d.hand(&Row{})
		}
	})
	d.hand(&Row{})
	d.all.Wait()
	if dispatched != 2 {
		t.Errorf("%d of 2 rows were dispatched", dispatched)
	}
}
