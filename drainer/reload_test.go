package drainer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
)

func TestAStopEndsAReloadThatWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var first, second atomic.Int64
		counted := func(closed *atomic.Int64) []Provider {
			return []Provider{{Name: "sim", Adapter: closing{close: func() error { closed.Add(1); return nil }}}}
		}
		o, _ := observing()
		daemon := New(awayStore{}, counted(&first), Settings{}, o.log, prometheus.NewRegistry())
		ctx, stop := context.WithCancel(t.Context())
		ended, reloaded := make(chan error, 1), make(chan error, 1)
		go func() { ended <- daemon.Run(ctx) }()
		go func() { reloaded <- daemon.Reload(counted(&second)) }()
		synctest.Wait() // both try to join
		stop()
		if err := <-reloaded; !errors.Is(err, errStopped) {
			t.Errorf("it reloaded although nobody could join: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if first.Load() != 1 || second.Load() != 1 {
			t.Errorf("the adapters were closed %d and %d times, want each once", first.Load(), second.Load())
		}
	})
}
