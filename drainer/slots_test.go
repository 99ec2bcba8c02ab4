package drainer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestSlotsBoundWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		var begun atomic.Int32
		end := make(chan struct{})
		for range 5 {
			go func() {
				if !s.acquire() {
					return
				}
				defer s.release()
				begun.Add(1)
				<-end
			}()
			synctest.Wait()
		}
		for _, step := range []struct {
			name string
			do   func()
			want int32
		}{
			{"two slots", func() {}, 2},
			{"a third", func() { s.resize(3) }, 3},
			{"one, while three are used", func() { s.resize(1) }, 3},
			{"one came free", func() { end <- struct{}{} }, 3},
			{"time to stop", s.lift, 5},
		} {
			step.do()
			synctest.Wait()
			if got := begun.Load(); got != step.want {
				t.Errorf("%s: %d have begun, want %d", step.name, got, step.want)
			}
		}
		close(end)
	})
}

func TestWhoHasNoShareDoesNotWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(1)
		s.acquire()
		waiting := make(chan bool, 1)
		go func() { waiting <- s.acquire() }()
		synctest.Wait()
		s.resize(0)
		if <-waiting || s.acquire() {
			t.Error("a slot was given where there is none")
		}
	})
}
