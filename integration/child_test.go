package integration_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/postgres"
)

// daemonMain is what a daemon process does. It logs to stderr.
func daemonMain(encoded string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runDaemon(ctx, encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runDaemon(ctx context.Context, encoded string) error {
	setup, err := decodeSetup(encoded)
	if err != nil {
		return err
	}
	store, err := postgres.Open(context.WithoutCancel(ctx), setup.DatabaseURL)
	if err != nil {
		return err
	}
	defer store.Close()
	gate := newGate(setup.PauseAt, os.Stdin, os.Stdout)
	var providers []drainer.Provider
	for _, provider := range setup.Providers {
		built, err := provider.build(func(a dispatch.Adapter) dispatch.Adapter { return pausing{a, gate} })
		if err != nil {
			return err
		}
		providers = append(providers, built)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	return drainer.New(store, providers, drainer.Settings{Worker: setup.Worker}, log, prometheus.NewRegistry()).Run(ctx)
}
