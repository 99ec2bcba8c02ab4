package drainer

import (
	"testing"
	"testing/synctest"
)

func TestSlotsBoundWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(2)
		begun, end := 0, make(chan struct{})
		for range 5 {
			go func() {
				s.acquire()
				defer s.release()
				begun++
				<-end
			}()
			synctest.Wait()
		}
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"two slots", func() {}, 2},
			{"a third", func() { s.resize(3) }, 3},
			{"one, while three are used", func() { s.resize(1) }, 3},
			{"one came free", func() { end <- struct{}{} }, 3},
			{"time to stop", s.lift, 5},
		} {
			step.do()
			synctest.Wait()
			if begun != step.want {
				t.Errorf("%s: %d have begun, want %d", step.name, begun, step.want)
			}
		}
		close(end)
	})
}
