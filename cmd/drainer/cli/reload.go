package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
)

// reloadInterval is how often files are checked. A change counts once the file has not changed for one further
// interval.
const reloadInterval = time.Second

// reloader replaces the configuration by a new one, as a whole or not at all.
type reloader struct {
	source
	start   *config.Config
	files   []config.File // as they were last read
	daemon  *drainer.Daemon
	secrets *drainer.Redactor
	parts   *parts
	metrics *reloadMetrics
	inForce atomic.Pointer[standing]
	log     *slog.Logger
}

// standing is the configuration in force, and the configuration of the file, some blocks of which may wait for a
// restart.
type standing struct {
	*config.Config

	file    *config.Config
	waiting []string // the names of the blocks that wait
}

// source is where configurations and the signals to reload come from.
type source struct {
	load    func() (*config.Config, error)
	fixedOf func(*config.Config) []fixed
	hangups <-chan os.Signal
}

func (o *options) source(command *cobra.Command, hangups <-chan os.Signal) source {
	return source{
		load: func() (*config.Config, error) { return o.loadConfigBy(command, config.Reload) },
		fixedOf: func(loaded *config.Config) []fixed {
			database := loaded.Database.AsWritten()
			if o.databaseURL != "" { // the flag overrides the whole block
				database = config.Database{}
			}
			return []fixed{
				{"database", database},
				{"worker", loaded.Worker},
				{"server", loaded.Server},
				{"console", loaded.Console},
				{"log", loaded.Log},
				{"unconfigured", loaded.Unconfigured},
				{"misconfigured", loaded.Misconfigured},
				{"history", loaded.History},
				{"failover", loaded.Lossless},
			}
		},
		hangups: hangups,
	}
}

// fixed is a block that only a restart can change, with its name in the file.
type fixed struct {
	block string
	value any
}

// run reloads until ctx ends.
func (r *reloader) run(ctx context.Context) {
	config.Watch(ctx, reloadInterval, r.files, r.hangups, r.reload)
}

func (r *reloader) reload(cause config.Cause) []config.File {
	log := r.log.With("cause", string(cause))
	loaded, err := r.read()
	if err == nil {
		err = r.apply(loaded, log)
	}
	var mistakes *config.InvalidError
	if errors.As(err, &mistakes) {
		r.reject(mistakes, log)
	}
	return r.files
}

func (r *reloader) read() (*config.Config, error) {
	for _, file := range r.files {
		if file.OnlyOnce() {
			return nil, &config.InvalidError{Files: asTheyAre(r.files), Problems: []*config.Error{{
				File: file.Path, Message: "is a pipe or a device, which can be read only once; restart to change the configuration, or use a file",
			}}}
		}
	}
	return r.load()
}

// asTheyAre returns files that were not read again, in their current versions, so that each version is refused only
// once.
func asTheyAre(files []config.File) []config.File {
	now := slices.Clone(files)
	for i := range now {
		now[i].Version = now[i].Current()
	}
	return now
}

// apply prepares every step that can fail before it changes anything.
func (r *reloader) apply(loaded *config.Config, log *slog.Logger) error {
	use, err := r.parts.prepare(loaded)
	if err != nil {
		return &config.InvalidError{Files: loaded.Files, Problems: []*config.Error{{File: loaded.Files[0].Path, Message: err.Error()}}}
	}
	next := r.stand(loaded)
	r.secrets.Add(loaded.Secrets)
	if err := r.daemon.Reload(loaded.Providers, next.Digests.Sum()); err != nil {
		return fmt.Errorf("hand the configuration over: %w", err) // the daemon stops, and so does this reload
	}
	use()
	r.inForce.Store(next)
	hasChanged := !slices.Equal(r.files, loaded.Files)
	r.files = loaded.Files
	r.metrics.applied()
	log.Info("configuration reloaded", "changed", hasChanged, "providers", len(loaded.Providers))
	for _, block := range next.waiting {
		log.Warn("a change of this block needs a restart; everything else is in force", "block", block)
	}
	logWarnings(r.log, loaded)
	return nil
}

// stand keeps each block that only a restart can change as it was at the start.
func (r *reloader) stand(loaded *config.Config) *standing {
	kept, start := *loaded, r.start
	kept.Database, kept.Worker, kept.Server, kept.Console, kept.Log = start.Database, start.Worker, start.Server, start.Console, start.Log
	kept.Unconfigured, kept.Misconfigured, kept.History, kept.Lossless = start.Unconfigured, start.Misconfigured, start.History, start.Lossless
	kept.Secrets = slices.Concat(start.Secrets, loaded.Secrets)
	kept.Digests = maps.Clone(loaded.Digests)
	next, last := &standing{Config: &kept, file: loaded}, r.inForce.Load()
	before := r.fixedOf(start)
	for i, now := range r.fixedOf(loaded) {
		if reflect.DeepEqual(now, before[i]) {
			continue // equal, even if it is written in another way
		}
		next.waiting = append(next.waiting, now.block)
		delete(kept.Digests, now.block)
		if digest, written := last.Digests[now.block]; written {
			kept.Digests[now.block] = digest
		}
	}
	return next
}

func (r *reloader) reject(mistakes *config.InvalidError, log *slog.Logger) {
	r.files = mistakes.Files
	r.metrics.rejected()
	for _, problem := range mistakes.Problems {
		log.Error("configuration rejected; the one before stays in force", "problem", problem.Error())
	}
}

type reloadMetrics struct {
	reloads    *prometheus.CounterVec
	successful prometheus.Gauge
	succeeded  prometheus.Gauge
}

// newReloadMetrics counts the start as a success, since no daemon starts without a valid configuration.
func newReloadMetrics(registerer prometheus.Registerer) *reloadMetrics {
	m := &reloadMetrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "config_reloads_total", Help: "Reloads, by whether the configuration was applied or rejected.",
		}, []string{"outcome"}),
		successful: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "config_last_reload_successful", Help: "0 after a configuration was rejected, else 1.",
		}),
		succeeded: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "config_last_reload_success_timestamp_seconds", Help: "When the configuration in force was applied.",
		}),
	}
	for _, outcome := range []string{"applied", "rejected"} {
		m.reloads.WithLabelValues(outcome)
	}
	m.succeed()
	registerer.MustRegister(m.reloads, m.successful, m.succeeded)
	return m
}

func (m *reloadMetrics) applied() {
	m.reloads.WithLabelValues("applied").Inc()
	m.succeed()
}

func (m *reloadMetrics) rejected() {
	m.reloads.WithLabelValues("rejected").Inc()
	m.successful.Set(0)
}

func (m *reloadMetrics) succeed() {
	m.successful.Set(1)
	m.succeeded.SetToCurrentTime()
}
