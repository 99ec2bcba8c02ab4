package cli

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/census"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/postgres"
)

func newRun(options *options) *cobra.Command {
	var once bool
	command := &cobra.Command{
		Use:   "run",
		Short: "Drain the outbox until told to stop",
		Long: `run claims due intents and dispatches them, with one lane a provider. Any number
of these processes may drain one outbox.

SIGTERM or an interrupt shuts it down: it claims nothing more, lets what is in
flight finish within worker.shutdown_timeout, gives back what was not sent, and
exits with 0. A second signal ends it at once; other processes then recover its
rows.

SIGHUP, or a change of the configuration or of a file that it refers to, reloads
it: providers, their tools, credentials and limits, retention and pages. What is
in flight ends as it began. A configuration with a mistake changes nothing, and
is logged. database, worker and server need a restart.

With --once it reloads nothing. Exit 0 says that nothing is due any more at the
providers of the configuration, and 1 that due rows are left because a provider
is paused or its circuit breaker is open. An intent that failed for now is due
later. What waits for other providers is not looked at, no run is taken back and
nobody is paged: that needs a daemon.

OTEL_EXPORTER_OTLP_ENDPOINT switches traces on, as docs/tracing.md describes: spans
of every attempt, sent to that collector in the trace that the agent left with its
intent.`,
		Example: `  drainer run --config drainer.yaml

  # drain what is due now, then exit: for cron, tests and a first try
  drainer run --once --config drainer.yaml`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.run(command, once)
		},
	}
	command.Flags().BoolVar(&once, "once", false, "stop when nothing is due and nothing is in flight; serves no metrics")
	return command
}

func (o *options) run(command *cobra.Command, once bool) error {
	collectLess()
	hangups := o.hangups()
	loaded, err := o.loadConfig(command)
	if err != nil {
		return err
	}
	url, err := o.databaseOf(command, loaded)
	if err != nil {
		return err
	}
	ctx := command.Context()
	if err := checkDatabase(ctx, url); err != nil {
		return err
	}
	log, flush := newLogger()
	defer flush() // last, when everything else has had its say
	store, err := postgres.Open(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close()
	logWarnings(log, loaded)
	if once {
		return drainOnce(ctx, store, loaded, log)
	}
	var pools pools
	if pools.jobs, err = jobs.OpenPool(ctx, url); err != nil {
		return err
	}
	defer pools.jobs.Close()
	if pools.census, err = census.OpenPool(ctx, url); err != nil {
		return err
	}
	defer pools.census.Close()
	return drain(ctx, store, pools, loaded, o.source(command, hangups), log)
}

// drainOnce has no jobs beside it, so what it finds cause to undo is left to a
// daemon.
func drainOnce(ctx context.Context, store *postgres.Store, loaded *config.Config, log *slog.Logger) error {
	var moved atomic.Int64
	metrics := prometheus.NewRegistry()
	traces, flush := startTracing(ctx, log, metrics)
	defer flush()
	settings := drainer.Settings{
		Worker: drainer.WorkerSettings(loaded.Worker), Once: true,
		SagaMoved: func(string) { moved.Add(1) },
		Traces:    traces,
	}
	err := drainer.New(store, providersOf(loaded), settings, log, metrics).Run(ctx)
	if moved.Load() > 0 {
		log.Warn("agent runs are to be taken back, which drainer run does without --once; see drainer sagas list --state begun")
	}
	return err
}

// drain runs the daemon beside its jobs, its reloads and its HTTP server;
// whichever fails ends them all.
func drain(ctx context.Context, store *postgres.Store, pools pools, loaded *config.Config, from source, log *slog.Logger) error {
	metrics := prometheus.NewRegistry()
	registerProcess(metrics)
	parts, err := partsOf(pools, loaded, log, metrics)
	if err != nil {
		return err
	}
	runner, err := jobs.New(pools.jobs, log, parts.list()...)
	if err != nil {
		return err
	}
	sagas := compensations.NewTriggers(pools.jobs, runner.Client(), log)
	traces, flush := startTracing(ctx, log, metrics)
	defer flush()
	settings := drainer.Settings{Worker: drainer.WorkerSettings(loaded.Worker), SagaMoved: sagas.Moved, Traces: traces}
	daemon := drainer.New(store, providersOf(loaded), settings, log, metrics)
	reloader := &reloader{
		source: from, started: from.fixedOf(loaded), files: loaded.Files,
		daemon: daemon, parts: parts, metrics: newReloadMetrics(metrics), log: log,
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return runner.Run(ctx) })
	group.Go(func() error { return sagas.Run(ctx) })
	group.Go(func() error { return parts.census.Run(ctx) })
	go reloader.run(ctx) // nobody waits for it: a file system that hangs must not hold up the end
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stopServing() // probes and metrics are answered until the last row is settled
		return daemon.Run(ctx)
	})
	group.Go(func() error {
		return serve(serving, loaded.Server.Listen, handler(daemon, metrics), log)
	})
	return group.Wait()
}

// logWarnings says at every start and reload what the configuration leaves to people.
func logWarnings(log *slog.Logger, loaded *config.Config) {
	for tool, policy := range loaded.Tools() {
		if missing := config.MissingSafeguards(policy); len(missing) > 0 {
			log.Warn("this tool is not safe for agents: repeating a call repeats its effect", "tool", tool, "missing", missing)
		}
	}
	if silent := loaded.Uncompensated(); len(silent) > 0 {
		log.Warn("a run that used one of these tools cannot be compensated: they have neither compensate_with nor compensation: none", "tools", silent)
	}
	if len(loaded.Pages) == 0 {
		log.Warn("nobody is told of incidents: name a channel under pages, or watch `drainer incidents list`")
	}
}

func providersOf(loaded *config.Config) []drainer.Provider {
	providers := make([]drainer.Provider, len(loaded.Providers))
	for i, p := range loaded.Providers {
		providers[i] = drainer.Provider(p)
	}
	return providers
}
