// Package jobs runs River beside the lanes: a few workers, on a small pool of
// their own, in the schema outbox. The fleet's leader inserts their jobs at regular intervals.
//
// River only triggers jobs, and correctness does not depend on it. A job may run twice, run
// late, or end at any point. So each job finds its work in the tables, and does it in
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

// MaxChannels is how many channels may be configured. Each takes at most one worker of a
// process, so that a channel that hangs does not delay another.
const MaxChannels = 16

const (
	connections = 6
	workers     = 4
	timeout     = time.Minute
	stopTimeout = 5 * time.Second
	// cooldown is the least time between two polls of a queue. It bounds how many short
	// jobs a process works.
	cooldown = 20 * time.Millisecond
)

// QueuePages is the queue of the jobs that send pages. It is a separate queue, so that an
// unreachable channel does not delay the other jobs.
const QueuePages = "pages"

// KindPageLook and KindSagaLook are the jobs that show that incidents are paged and sagas are
// moved: the fleet's leader starts one of each every few seconds.
const (
	KindPageLook = "page_look"
	KindSagaLook = "saga_look"
)

// Part is one kind of work: its workers, and the periodic jobs that start it.
type Part interface {
	Kinds() []string // the kinds of job that its workers work
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

// OpenPool returns a pool of as many connections as jobs need. It connects lazily.
func OpenPool(ctx context.Context, database *pgpool.Database) (*pgxpool.Pool, error) {
	return pgpool.Open(ctx, database, connections)
}

// New registers the metrics of jobs, and runs no job before [Runner.Run]. The
// caller closes the pool.
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
		CancelledJobRetentionPeriod: time.Hour,
		DiscardedJobRetentionPeriod: time.Hour,
		FetchCooldown:               cooldown,
		Middleware:                  []rivertype.Middleware{&dueByDatabase{}, watch},
		// Until then, the job of a process that was killed counts as running.
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

// Ready returns why pages and compensations may wait, or nil. It always returns nil in the
// first minute. A restart cures only some of the causes.
func (r *Runner) Ready() error { return r.watch.ready() }

// backoff is the delay between tries to start while the database is unreachable.
var backoff = dispatch.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// start retries until the database is reachable: a process must not end because of an
// outage at its start. It reports false if ctx ended first.
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

// Run works jobs until ctx ends. Then it gives the jobs under way stopTimeout to finish, and cancels them.
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

// warningsOnly is a handler that passes on only warnings and errors. River logs its number of
// jobs every few seconds, and the lines of attempts would be lost between those lines.
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
