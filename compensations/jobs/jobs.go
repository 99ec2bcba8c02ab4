// Package jobs runs River beside the lanes: a few workers on a small pool of
// their own, in the schema outbox, with jobs that the fleet's leader inserts
// again and again.
//
// River is a trigger and never a fence. A job may run twice, or late, or be cut
// off anywhere: each checks the tables for what is left to do, and does that in
// transactions that are safe to repeat.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// MaxChannels is how many channels may be paged. Each takes at most one worker of a
// process, so that one which hangs delays no other.
const MaxChannels = 16

const (
	connections = 6
	workers     = 4
	timeout     = time.Minute
	stopTimeout = 5 * time.Second
	// cooldown is how soon a queue is looked at again: it bounds how many short
	// jobs a process works off.
	cooldown = 20 * time.Millisecond
)

// QueuePages is apart, so that a pager that is down holds up no upkeep.
const QueuePages = "pages"

// KindPageLook and KindSagaLook are the jobs that show that pages and compensations come round:
// the fleet's leader starts one of each every few seconds.
const (
	KindPageLook = "page_look"
	KindSagaLook = "saga_look"
)

// Part is one kind of work: its workers, and the jobs that start it by the clock.
type Part interface {
	Kinds() []string // of the jobs that its workers take
	Register(*river.Workers)
	Periodic() []*river.PeriodicJob
}

// Client is a River client of the schema outbox.
type Client = river.Client[pgx.Tx]

// Runner is River with all parts registered.
type Runner struct {
	client *Client
	watch  *watch
	log    *slog.Logger
}

// OpenPool connects lazily, with the few connections that jobs get.
func OpenPool(ctx context.Context, database *pgpool.Database) (*pgxpool.Pool, error) {
	return pgpool.Open(ctx, database, connections)
}

// New registers the metrics of jobs, and runs nothing before [Runner.Run]. The
// pool is the caller's.
func New(pool *pgxpool.Pool, log *slog.Logger, registerer prometheus.Registerer, parts ...Part) (*Runner, error) {
	all := river.NewWorkers()
	var periodic []*river.PeriodicJob
	var kinds []string
	for _, part := range parts {
		part.Register(all)
		periodic, kinds = append(periodic, part.Periodic()...), append(kinds, part.Kinds()...)
	}
	watch := newWatch(pool, kinds, registerer)
	client, err := river.NewClient[pgx.Tx](pollingDriver{riverpgxv5.New(pool), pool}, &river.Config{
		PollOnly:                    true,
		Schema:                      "outbox",
		Queues:                      queues(),
		Workers:                     all,
		PeriodicJobs:                periodic,
		Logger:                      slog.New(warningsOnly{pgpool.ErrorsAsText(log.Handler())}),
		JobTimeout:                  timeout,
		CompletedJobRetentionPeriod: time.Hour,
		DiscardedJobRetentionPeriod: time.Hour,
		FetchCooldown:               cooldown,
		Middleware:                  []rivertype.Middleware{&dueByDatabase{}, watch},
		// A job of a process that was killed counts as running until then.
		RescueStuckJobsAfter: timeout + 30*time.Second,
	})
	if err != nil {
		return nil, fmt.Errorf("set up River: %w", err)
	}
	return &Runner{client, watch, log}, nil
}

func queues() map[string]river.QueueConfig {
	return map[string]river.QueueConfig{
		river.QueueDefault: {MaxWorkers: workers},
		QueuePages:         {MaxWorkers: MaxChannels + workers},
	}
}

// Ready reports why pages and compensations may wait. It never says so for the
// first minute, and a restart cures some causes only.
func (r *Runner) Ready() error { return r.watch.ready() }

// backoff spaces the tries to start while the database is away.
var backoff = dispatch.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// start retries until the database is there: a process that is up must not end
// because of an outage in its first moments. It reports false if ctx ended first.
func (r *Runner) start(ctx context.Context) bool {
	for failures := 1; ; failures++ {
		err := r.client.Start(context.WithoutCancel(ctx))
		if err == nil {
			return true
		}
		r.log.Warn("cannot start jobs yet; retrying with backoff", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(backoff.Delay(failures, 0, rand.Float64())):
		}
	}
}

// Run works until ctx ends, then lets jobs under way finish for a few seconds.
func (r *Runner) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { r.watch.run(ctx) })
	if !r.start(ctx) {
		return nil
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err := r.client.Stop(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = r.client.StopAndCancel(context.WithoutCancel(ctx))
	}
	if err != nil {
		return fmt.Errorf("stop River: %w", err)
	}
	return nil
}

// warningsOnly passes on warnings and errors alone. Every few seconds River logs how
// many jobs it has, and the lines of attempts would be lost between those.
type warningsOnly struct{ to slog.Handler }

func (q warningsOnly) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && q.to.Enabled(ctx, level)
}

func (q warningsOnly) Handle(ctx context.Context, record slog.Record) error {
	return q.to.Handle(ctx, record)
}

func (q warningsOnly) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warningsOnly{q.to.WithAttrs(attrs)}
}

func (q warningsOnly) WithGroup(name string) slog.Handler { return warningsOnly{q.to.WithGroup(name)} }
