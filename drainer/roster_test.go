package drainer

import (
	"context"
	"testing"
	"testing/synctest"
)

func TestASessionWaitsForThoseThatJoinedBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r roster
		oldest, middle, newest := &session{}, &session{}, &session{}
		left := make(chan *session, 3)
		for _, s := range []*session{oldest, middle, newest} {
			r.enter(s)
		}
		for _, s := range []*session{newest, middle, oldest} {
			go func() {
				r.awaitElders(t.Context(), s)
				left <- s
				if s != newest {
					r.exit(s)
				}
			}()
		}
		for _, want := range []*session{oldest, middle, newest} {
			if <-left != want {
				t.Fatal("a session left before one that had joined before")
			}
		}
		if r.newest() != newest || len(r.all()) != 1 {
			t.Error("the newest is not the one that is left")
		}
	})
}

func TestTheWaitForEldersIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r roster
		elder, s := &session{}, &session{}
		r.enter(elder)
		r.enter(s)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.awaitElders(ctx, s)
			close(ended)
		}()
		synctest.Wait()
		cancel()
		<-ended
	})
}
