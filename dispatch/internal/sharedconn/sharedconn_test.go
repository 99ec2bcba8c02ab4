package sharedconn_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/sharedconn"
)

const limit = 10 * time.Second

// wire is a connection that a test can break.
type wire struct {
	done   chan struct{}
	broken atomic.Bool
}

func newWire() *wire { return &wire{done: make(chan struct{})} }

func (w *wire) Alive() bool           { return !w.broken.Load() }
func (w *wire) Done() <-chan struct{} { return w.done }

func (w *wire) Close() {
	w.broken.Store(true)
	close(w.done)
}

func get(t *testing.T, shared *sharedconn.Shared[*wire]) *wire {
	t.Helper()
	conn, err := shared.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestManyCallersShareOneDial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		shared := sharedconn.New(func(context.Context) (*wire, error) {
			dials++
			time.Sleep(time.Second)
			return newWire(), nil
		}, limit)
		defer shared.Close()
		var group sync.WaitGroup
		got := make([]*wire, 64)
		for i := range got {
			group.Go(func() { got[i], _ = shared.Get(t.Context()) })
		}
		group.Wait()
		for _, conn := range got {
			if conn == nil || conn != got[0] {
				t.Error("not one connection for all")
			}
		}
		if dials != 1 {
			t.Errorf("%d dials", dials)
		}
	})
}

func TestADialOutlivesTheCallerThatBeganIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		shared := sharedconn.New(func(context.Context) (*wire, error) {
			dials++
			time.Sleep(time.Second)
			return newWire(), nil
		}, limit)
		defer shared.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := shared.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if get(t, shared); dials != 1 {
			t.Errorf("%d dials", dials)
		}
	})
}

func TestABrokenConnectionIsReplacedOnceItIsNeeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		shared := sharedconn.New(func(context.Context) (*wire, error) {
			dials++
			return newWire(), nil
		}, limit)
		defer shared.Close()
		first := get(t, shared)
		first.Close()
		synctest.Wait()
		if dials != 1 {
			t.Errorf("%d dials before one was needed", dials)
		}
		if second := get(t, shared); second == first || dials != 2 {
			t.Errorf("the same: %t, %d dials", second == first, dials)
		}
	})
}

func TestAForgottenConnectionIsNotUsedAndEndsWithTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := sharedconn.New(func(context.Context) (*wire, error) { return newWire(), nil }, limit)
		first := get(t, shared)
		if !shared.Forget(first) || shared.Forget(first) {
			t.Error("a connection is forgotten once")
		}
		second := get(t, shared)
		if second == first || !first.Alive() {
			t.Errorf("the same: %t, alive: %t", second == first, first.Alive())
		}
		if shared.Forget(first) {
			t.Error("an old connection took the new one with it")
		}
		shared.Close()
		if first.Alive() || second.Alive() {
			t.Error("a connection outlived Close")
		}
	})
}

func TestCloseCancelsADialAndWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, dialled := range map[string]bool{"that gives up": false, "that succeeds all the same": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conn := newWire()
				shared := sharedconn.New(func(ctx context.Context) (*wire, error) {
					<-ctx.Done()
					if dialled {
						return conn, nil
					}
					conn.Close()
					return nil, ctx.Err()
				}, limit)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := shared.Get(ctx); err == nil {
					t.Error("there was a connection")
				}
				shared.Close()
				if conn.Alive() {
					t.Error("the connection outlived Close")
				}
			})
		})
	}
}

func TestADialIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shared := sharedconn.New(func(ctx context.Context) (*wire, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, limit)
		defer shared.Close()
		began := time.Now()
		if _, err := shared.Get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != limit {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestDialsThatFailComeMoreAndMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused, fails := errors.New("refused"), true
		var at []time.Time
		shared := sharedconn.New(func(context.Context) (*wire, error) {
			at = append(at, time.Now())
			if fails {
				return nil, refused
			}
			return newWire(), nil
		}, limit)
		defer shared.Close()
		for range 10 {
			if _, err := shared.Get(t.Context()); !errors.Is(err, refused) {
				t.Errorf("got %v", err)
			}
		}
		for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
			if got := at[i+1].Sub(at[i]); got != want*time.Millisecond {
				t.Errorf("dial %d came %s after the one before, want %d ms", i+1, got, want)
			}
		}
		time.Sleep(time.Minute) // long enough that no pause is left
		fails = false
		before := time.Now()
		conn := get(t, shared)
		if waited := time.Since(before); waited != 0 {
			t.Errorf("waited for %s though the last failure was long ago", waited)
		}
		conn.Close()
		fails = true
		_, _ = shared.Get(t.Context())
		_, _ = shared.Get(t.Context())
		if got := at[len(at)-1].Sub(at[len(at)-2]); got != 10*time.Millisecond {
			t.Errorf("after a success the first pause is %s", got)
		}
	})
}
