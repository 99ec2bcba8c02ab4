package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/census"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainer/postgres"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func newRun(options *options) *cobra.Command {
	var once bool
	command := &cobra.Command{
		Use:   "run",
		Short: "Send due intents until stopped",
		Long: `run claims due intents and dispatches them, with one lane a provider. Any number
of these processes may drain one outbox.

SIGTERM or an interrupt shuts it down: it claims nothing more, lets requests in
flight finish within worker.shutdown_timeout, gives unsent rows back, and exits
with 0. A second signal ends it at once; other processes then recover its rows.

SIGHUP, or a change of the configuration or of a file that it refers to, reloads
it: providers, their tools, credentials and limits, retention and pages. Requests
in flight keep their old configuration. A configuration with a mistake changes
nothing, and is logged. database, worker, server, console, log, unconfigured,
misconfigured, failover and history need a restart.

With --once it reloads nothing. Exit 0: nothing is due any more at the providers of
the configuration; an intent may wait for its next attempt. Exit 1: due rows are
left, because a provider is paused, or its circuit breaker or that of an operation
is open. With --once it compensates no run and sends no pages: that needs a daemon.

OTEL_EXPORTER_OTLP_ENDPOINT switches on traces of every attempt: docs/tracing.md.`,
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
	database, err := o.databaseOf(command, loaded)
	if err != nil {
		return err
	}
	ctx := command.Context()
	if err := checkDatabase(ctx, database); err != nil {
		return missingRole(err, database, drainerRole)
	}
	var listener net.Listener
	if !once { // before anything else begins: a second daemon of the host fails here
		if listener, err = listenAt(listenAddress(loaded)); err != nil {
			return err
		}
		defer listener.Close()
	}
	log, flush := newLogger(loaded.Log)
	defer flush() // deferred first and so run last, after the log lines of the others
	limitMemory(log, memlimit.FromCgroup)
	log = database.Logging(log)
	store, err := postgres.Open(ctx, database)
	if err != nil {
		return missingRole(err, database, drainerRole)
	}
	defer store.Close()
	store.Guard(postgres.Guard{Lossless: loaded.Lossless, Witness: loaded.History.Witness, Lease: loaded.Worker.Lease, Log: log})
	logWarnings(log, loaded)
	if once {
		return missingRole(drainOnce(ctx, store, loaded, log), database, drainerRole)
	}
	var pools pools
	if pools.sagas, err = compensations.OpenPool(ctx, database); err != nil {
		return err
	}
	defer pools.sagas.Close()
	if pools.jobs, err = jobs.OpenPool(ctx, database); err != nil {
		return err
	}
	defer pools.jobs.Close()
	if pools.census, err = census.OpenPool(ctx, database); err != nil {
		return err
	}
	defer pools.census.Close()
	return missingRole(drain(ctx, database, store, pools, listener, loaded, o.source(command, hangups), log), database, drainerRole)
}

// drainOnce runs no jobs, so it leaves new rollbacks to a daemon.
func drainOnce(ctx context.Context, store *postgres.Store, loaded *config.Config, log *slog.Logger) error {
	var marked atomic.Bool
	metrics := prometheus.NewRegistry()
	traces, flush := startTracing(ctx, log, metrics)
	defer flush()
	settings := drainer.Settings{
		Worker: drainer.WorkerSettings(loaded.Worker), Digest: loaded.Digests.Sum(), Once: true,
		Sagas: func(news drainer.SagaNews) {
			if news.Marked {
				marked.Store(true)
			}
		},
		Traces:                traces,
		Secrets:               drainer.NewRedactor(loaded.Secrets),
		UnconfiguredFailAfter: loaded.Unconfigured.FailAfter, MisconfiguredFailAfter: loaded.Misconfigured.FailAfter,
	}
	err := drainer.New(store, loaded.Providers, settings, log, metrics).Run(ctx)
	if marked.Load() {
		log.Warn("agent runs wait to be rolled back: run drainer without --once; see drainer sagas list --state begun")
	}
	return err
}

// drain runs the daemon, its jobs, its reloads and its HTTP server. If one of them fails, all end.
func drain(ctx context.Context, database *pgpool.Database, store *postgres.Store, pools pools, listener net.Listener, loaded *config.Config, from source, log *slog.Logger) error {
	metrics := prometheus.NewRegistry()
	registerProcess(metrics)
	metrics.MustRegister(loginRefused(database))
	parts, err := partsOf(pools, loaded, log, metrics)
	if err != nil {
		return err
	}
	runner, err := jobs.New(pools.jobs, log, metrics, parts.saga, parts.pager, parts.upkeep)
	if err != nil {
		return err
	}
	traces, flush := startTracing(ctx, log, metrics)
	defer flush()
	secrets := drainer.NewRedactor(loaded.Secrets)
	settings := drainer.Settings{
		Worker: drainer.WorkerSettings(loaded.Worker), Digest: loaded.Digests.Sum(), Traces: traces, Secrets: secrets,
		Sagas:                 func(news drainer.SagaNews) { parts.saga.Settled(news.Marked, news.Undos, news.Compensated) },
		UnconfiguredFailAfter: loaded.Unconfigured.FailAfter, MisconfiguredFailAfter: loaded.Misconfigured.FailAfter,
		NativeHistograms: loaded.Server.NativeHistograms,
	}
	daemon := drainer.New(store, loaded.Providers, settings, log, metrics)
	parts.census.Count(daemon.Counters())
	reloader := &reloader{
		source: from, start: loaded, files: loaded.Files,
		daemon: daemon, secrets: secrets, parts: parts, metrics: newReloadMetrics(metrics), log: log,
	}
	reloader.inForce.Store(&standing{Config: loaded, file: loaded})

	group, ctx := errgroup.WithContext(ctx)
	if loaded.Console.Listen != "" {
		listener, pages, closePools, err := consoleOf(ctx, loaded, database, reloader.inForce.Load, log)
		if err != nil {
			return err
		}
		defer closePools()
		group.Go(func() error {
			if err := servePages(ctx, listener, pages, maxConnections, log); err != nil {
				log.Error("the console is not served any more; restart to have it again", "error", err) // deliveries go on
			}
			return nil
		})
	}
	group.Go(func() error { return runner.Run(ctx) })
	group.Go(func() error { return parts.pager.Run(ctx, store.Incidents()) })
	group.Go(func() error { return parts.saga.Run(ctx) })
	group.Go(func() error { return parts.census.Run(ctx) })
	go reloader.run(ctx) // not in the group: a file system that hangs must not delay the end
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stopServing() // probes and metrics are answered until the last row is settled
		return daemon.Run(ctx)
	})
	group.Go(func() error {
		return serveProbes(serving, listener, handler(readiness(database, daemon, runner), daemon.Live, metrics), log)
	})
	if loaded.Server.Debug != "" {
		group.Go(func() error { return serveProfiles(serving, loaded.Server.Debug, log) })
	}
	return group.Wait()
}

// mostNamed bounds the tools that one log line names. `drainer config validate` lists all.
const mostNamed = 20

// logWarnings logs, at every start and reload, the tools whose failures need a human: one line for each kind of gap.
func logWarnings(log *slog.Logger, loaded *config.Config) {
	unsafe := map[string][]string{} // by the safeguard that they lack
	for tool, policy := range loaded.Tools() {
		if missing := config.MissingSafeguards(policy); len(missing) > 0 {
			lack := strings.Join(missing, ", ")
			unsafe[lack] = append(unsafe[lack], tool)
		}
	}
	for _, lack := range slices.Sorted(maps.Keys(unsafe)) {
		log.Warn("tools are not safe for agents: repeating a call repeats its effect", "missing", strings.Split(lack, ", "),
			"count", len(unsafe[lack]), "tools", unsafe[lack][:min(len(unsafe[lack]), mostNamed)])
	}
	if silent := loaded.Uncompensated(); len(silent) > 0 {
		log.Warn("a run that used one of these tools cannot be compensated: they have neither compensate_with nor compensation: none",
			"count", len(silent), "tools", silent[:min(len(silent), mostNamed)])
	}
	if len(loaded.Pages) == 0 {
		log.Warn("no paging channel is configured (pages:); watch `drainer incidents list`")
	}
	if unrouted := loaded.Unrouted(incident.Kinds(incident.Page)...); len(unrouted) > 0 {
		log.Warn("some incidents reach no channel (pages:); watch `drainer incidents list`", "incidents", unrouted)
	}
}

// garbagePercent is twice Go's default. The live heap is small compared with the garbage of the attempts, so a few
// megabytes save a sixth of the processor time.
const garbagePercent = 200

// collectLess does nothing if GOGC is set.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// handler serves metrics and the two probes. /livez fails for an error that a restart cures. /readyz fails while
// this process cannot claim, or while pages and compensations do not run.
func handler(ready, live func() error, metrics *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 8, EnableOpenMetrics: true}))
	mux.HandleFunc("GET /livez", probe(live))
	mux.HandleFunc("GET /readyz", probe(ready))
	return mux
}

// readiness distinguishes a refused login from a database that is away. While the open connections suffice, the process
// is ready even if a new login would be refused; an alert tells that earlier.
func readiness(database *pgpool.Database, daemon *drainer.Daemon, runner *jobs.Runner) func() error {
	return func() error {
		err := daemon.Ready()
		if err == nil {
			err = runner.Ready()
		}
		refusal := database.Refusal()
		if err != nil && errors.Is(refusal, pgpool.ErrPooler) {
			return fmt.Errorf("%w; each connect tries again, so restart nothing", refusal)
		} else if err != nil && refusal != nil {
			return fmt.Errorf("%w; each connect tries again, so correct the password, and restart nothing: see drainer doctor", refusal)
		}
		return err
	}
}

func loginRefused(database *pgpool.Database) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "drainer", Name: "database_login_refused",
		Help: "1 if the newest connection had no password, or the database refused its login.",
	}, func() float64 {
		if refusal := database.Refusal(); refusal != nil && !errors.Is(refusal, pgpool.ErrPooler) {
			return 1
		}
		return 0
	})
}

func probe(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// defaultListen can be reached from this machine only. A container is reached from other machines only, so its image
// sets listenVariable.
const (
	defaultListen  = "127.0.0.1:9464"
	listenVariable = "DRAINER_LISTEN"
)

func listenAt(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("metrics and probes cannot be served: another program, perhaps another drainer, listens on %s; "+
			"set server.listen in the configuration, or %s, to another address", address, listenVariable)
	case err != nil:
		return nil, fmt.Errorf("metrics and probes cannot be served; correct server.listen in the configuration, or %s: %w", listenVariable, err)
	}
	return listener, nil
}

// serve answers requests until ctx ends, and then gives those under way that long to finish.
func serve(ctx context.Context, listener net.Listener, server *http.Server, most int, grace time.Duration) error {
	server.ConnState = (&connections{most: most, open: map[net.Conn]*connection{}}).changed
	stop := context.AfterFunc(ctx, func() {
		ends, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		_ = server.Shutdown(ends) // requests that take longer are cut off
		_ = server.Close()
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP at %s: %w", listener.Addr(), err)
	}
	return nil
}

func serveProbes(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	log.Info("serving", "address", listener.Addr().String())
	return serve(ctx, listener, &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute, // longer than the pause between two scrapes
		MaxHeaderBytes:    8 << 10,
	}, maxConnections, 0)
}

// serveProfiles serves profiles for go tool pprof, only on loopback and only if the configuration asks for them.
func serveProfiles(ctx context.Context, address string, log *slog.Logger) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("profiles cannot be served; correct server.debug in the configuration: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	log.Info("profiles can be read", "address", listener.Addr().String())
	return serve(ctx, listener, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10}, maxConnections, 0)
}

// maxConnections is the limit of a port: far more than scrapers, probes and people need, and far fewer than the files
// that the process may open.
const maxConnections = 64

// connections limits the connections of a port, so that dispatch keeps enough files and memory. If new clients had to
// wait, idle ones could keep out probes and scrapes. So the oldest connection is closed instead, preferably
// one that waits for a request.
type connections struct {
	most int
	mu   sync.Mutex
	open map[net.Conn]*connection
}

type connection struct {
	opened time.Time
	busy   bool // has sent at least a part of a request
}

// changed is called before the server does anything else with a new connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	switch {
	case state == http.StateNew:
		if len(c.open) >= c.most {
			oldest := c.oldest()
			_ = oldest.Close()
			delete(c.open, oldest)
		}
		c.open[conn] = &connection{opened: time.Now()}
	case state == http.StateClosed || state == http.StateHijacked:
		delete(c.open, conn)
	case known != nil: // otherwise it was closed here
		known.busy = state == http.StateActive
	}
}

func (c *connections) oldest() (oldest net.Conn) {
	for conn, one := range c.open {
		first := c.open[oldest]
		if first == nil || first.busy && !one.busy || first.busy == one.busy && one.opened.Before(first.opened) {
			oldest = conn
		}
	}
	return oldest
}

func registerProcess(metrics prometheus.Registerer) {
	build := currentVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "drainer_build_info",
		Help:        "Always 1; the labels say which drainer this is.",
		ConstLabels: prometheus.Labels{"version": build.Version, "revision": build.Revision, "go": build.Go},
	})
	info.Set(1)
	metrics.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// memoryShare is the share of its cgroup's memory that the process lets Go use. The rest is for memory that Go does
// not count.
const memoryShare = 0.9

// limitMemory makes Go collect garbage more often before the kernel kills the process. It does nothing if GOMEMLIMIT is
// set.
func limitMemory(log *slog.Logger, of memlimit.Provider) {
	limit, err := memlimit.SetGoMemLimitWithOpts(memlimit.WithRatio(memoryShare), memlimit.WithProvider(of))
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("the memory limit of the cgroup is not known: set GOMEMLIMIT", "error", err)
	case limit > 0:
		log.Info("memory limit", "bytes", limit)
	}
}
