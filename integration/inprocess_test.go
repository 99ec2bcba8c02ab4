package integration_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// drainOnce drains in this process until nothing is due.
func drainOnce(t testing.TB, url string, providers ...dispatch.Provider) {
	t.Helper()
	store, err := postgres.Open(context.Background(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	settings := drainer.Settings{Worker: patientLease, Once: true}
	daemon := drainer.New(store, providers, settings, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := daemon.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// resident is a daemon in this process.
type resident struct {
	*drainer.Daemon

	stop  context.CancelFunc
	ended chan struct{} // closed after the daemon ended; err is set before
	err   error
}

// launch drains in this process until the test ends, which fails if the daemon
// cannot settle all.
func launch(t *testing.T, url string, providers ...dispatch.Provider) *resident {
	t.Helper()
	return launchWith(t, url, patientLease, providers...)
}

func launchWith(t *testing.T, url string, worker drainer.WorkerSettings, providers ...dispatch.Provider) *resident {
	t.Helper()
	store, err := postgres.Open(context.Background(), pgpool.At(url))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &resident{
		Daemon: drainer.New(store, providers, drainer.Settings{Worker: worker}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()),
		stop:   stop, ended: make(chan struct{}),
	}
	go func() {
		r.err = r.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(func() {
		if err := r.end(t); err != nil {
			t.Error(err)
		}
		store.Close()
	})
	return r
}

// end shuts the daemon down in order.
func (r *resident) end(t *testing.T) error {
	t.Helper()
	r.stop()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(drainertest.Patience):
		t.Fatal("the daemon did not end")
		return nil
	}
}
