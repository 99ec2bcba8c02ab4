package integration_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
)

// drainOnce drains in this process until nothing is due.
func drainOnce(t testing.TB, url string, providers ...drainer.Provider) {
	t.Helper()
	store, err := postgres.Open(context.Background(), url)
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

// launch drains in this process until the test ends.
func launch(t *testing.T, url string, providers ...drainer.Provider) {
	t.Helper()
	store, err := postgres.Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	daemon := drainer.New(store, providers, drainer.Settings{Worker: patientLease}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		store.Close()
	})
}
