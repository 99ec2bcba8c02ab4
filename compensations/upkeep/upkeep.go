// Package upkeep forgets what the outbox need not remember any more, so that
// it does not grow forever.
//
// A settled intent is kept for its retention, and so is its key: enqueueing it
// again changes nothing until then, and makes a new intent afterwards. That
// time is the dedupe window which agents can rely on.
//
// The fleet's leader starts a prune every ten minutes. It walks through the
// intents in the order of their ids, a bounded batch a transaction, rests as
// long as it worked, and hands its place on to the next slice until it has
// reached what is too young. What may go is decided in the function
// outbox.prune, which waits for no lock. It keeps everything for as long as the
// schema's owner says in outbox.setting, whatever a daemon asks for.
package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// leastRetention is the least that outbox.prune accepts.
const leastRetention = time.Hour

const interval = 10 * time.Minute

// Retention is how long settled intents are kept.
type Retention struct {
	// Tools are by full name, such as stripe/create_charge. Intents of other tools
	// are kept for good: another process may know better. A key must not be forgotten
	// before its provider forgets it.
	Tools map[string]time.Duration
	// MaxRun is how long a run that is still in use keeps its old intents, at most.
	MaxRun time.Duration
}

// ErrRetention says that a retention is too short.
var ErrRetention = errors.New("settled intents are kept for an hour at least")

func (r Retention) validate() error {
	if r.MaxRun < leastRetention {
		return fmt.Errorf("a run keeps its intents for %s: %w", r.MaxRun, ErrRetention)
	}
	for tool, kept := range r.Tools {
		if kept < leastRetention {
			return fmt.Errorf("retention of %s for %s: %w", kept, tool, ErrRetention)
		}
	}
	return nil
}

// Upkeep is the part of River's jobs that prunes.
type Upkeep struct {
	pool      *pgxpool.Pool
	retention atomic.Pointer[Retention]
	overruled atomic.Pointer[Retention] // was logged
	pace      pace
	log       *slog.Logger
	pruned    prometheus.Counter
}

// New leaves the pool to its owner.
func New(pool *pgxpool.Pool, retention Retention, log *slog.Logger, registerer prometheus.Registerer) (*Upkeep, error) {
	u := &Upkeep{pool: pool, pace: usualPace, log: log, pruned: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "drainer", Name: "pruned_total", Help: "Settled intents that this process pruned.",
	})}
	use, err := u.Prepare(retention)
	if err != nil {
		return nil, err
	}
	use()
	registerer.MustRegister(u.pruned)
	return u, nil
}

// Prepare readies another retention, and fails where New would. It counts from
// the next batch once use is called.
func (u *Upkeep) Prepare(retention Retention) (use func(), err error) {
	if err := retention.validate(); err != nil {
		return nil, err
	}
	return func() { u.retention.Store(&retention) }, nil
}

// Kinds are those of its jobs.
func (u *Upkeep) Kinds() []string { return []string{pruneArgs{}.Kind()} }

// Register adds the worker that prunes.
func (u *Upkeep) Register(workers *river.Workers) { river.AddWorker(workers, &pruneWorker{upkeep: u}) }

// Periodic starts a prune with the leader, and then every ten minutes unless
// the last one is still at it.
func (u *Upkeep) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(interval),
		func() (river.JobArgs, *river.InsertOpts) { return pruneArgs{}, onlyOne },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}

// onlyOne is not retried either: the next one comes soon.
var onlyOne = &river.InsertOpts{
	MaxAttempts: 1,
	UniqueOpts: river.UniqueOpts{ByQueue: true, ByState: []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
		rivertype.JobStateRetryable, rivertype.JobStateScheduled,
	}},
}

// pace bounds what a prune asks of the database at once.
type pace struct {
	looks int           // intents that one transaction looks at
	slice time.Duration // how long one go of the job may take
}

// forGood is longer than any outbox lives.
const forGood = 100 * 365 * 24 * time.Hour

var usualPace = pace{looks: 1000, slice: 30 * time.Second}

type pruneArgs struct{}

func (pruneArgs) Kind() string { return "prune" }

type pruneWorker struct {
	river.WorkerDefaults[pruneArgs]
	upkeep *Upkeep
}

// Work takes one slice of a walk. Where it ended is kept as the job's output:
// starting over would never get past many intents that are kept for longer.
func (w *pruneWorker) Work(ctx context.Context, job *river.Job[pruneArgs]) error {
	var from int64
	if err := w.upkeep.sayWhereTheOwnerOverrules(ctx); err != nil {
		return err
	}
	if place := job.Output(); place != nil {
		if err := json.Unmarshal(place, &from); err != nil {
			return fmt.Errorf("read where the prune was: %w", err)
		}
	}
	next, err := w.upkeep.slice(ctx, from)
	if err != nil || next == nil {
		return err
	}
	if err := river.RecordOutput(ctx, *next); err != nil {
		return fmt.Errorf("note where the prune is: %w", err)
	}
	return river.JobSnooze(0)
}

// slice prunes batch after batch, and returns where to go on; nil at the end.
func (u *Upkeep) slice(ctx context.Context, from int64) (next *int64, err error) {
	started, total := time.Now(), 0
	defer func() {
		if total > 0 {
			u.log.Info("pruned", "intents", total, "took_seconds", time.Since(started).Seconds())
		}
	}()
	for {
		batch := time.Now()
		pruned, next, err := u.batch(ctx, from)
		if err != nil {
			return nil, err
		}
		total += pruned
		u.pruned.Add(float64(pruned))
		if next == nil || time.Since(started) > u.pace.slice {
			return next, nil
		}
		from = *next
		rest(ctx, time.Since(batch))
	}
}

// batch is written for READ COMMITTED, and the role's default may be stricter.
func (u *Upkeep) batch(ctx context.Context, after int64) (pruned int, next *int64, err error) {
	err = pgx.BeginTxFunc(ctx, u.pool, pgpool.Transaction, func(tx pgx.Tx) error {
		retention := u.retention.Load()
		tools, seconds := retention.columns()
		return tx.QueryRow(ctx, `SELECT pruned, next FROM outbox.prune($1, $2, $3, $4, $5, $6)`,
			after, u.pace.looks, forGood.Seconds(), tools, seconds, retention.MaxRun.Seconds()).Scan(&pruned, &next)
	})
	if err != nil {
		return 0, nil, fmt.Errorf("prune: %w", err)
	}
	return pruned, next, nil
}

// sayWhereTheOwnerOverrules logs once for each configuration that intents are
// kept for longer than it says.
func (u *Upkeep) sayWhereTheOwnerOverrules(ctx context.Context) error {
	retention := u.retention.Load()
	if u.overruled.Load() == retention {
		return nil
	}
	var number int
	var first *string
	var kept *float64
	tools, seconds := retention.columns()
	err := u.pool.QueryRow(ctx, `SELECT count(*), min(own.tool), min(kept.seconds)
		FROM unnest($1::text[], $2::float8[]) AS own (tool, seconds), outbox.retention_floor(own.tool) AS kept (seconds)
		WHERE own.seconds < kept.seconds`, tools, seconds).Scan(&number, &first, &kept)
	if err != nil {
		return fmt.Errorf("read the floor of retention: %w", err)
	}
	if number > 0 {
		u.log.Warn("intents are kept for longer than the configuration says, because the schema's owner says so; drainer migrate retention changes that",
			"tools", number, "such_as", *first, "at_least_seconds", *kept)
	}
	u.overruled.Store(retention)
	return nil
}

func (r Retention) columns() (tools []string, seconds []float64) {
	tools, seconds = []string{}, []float64{} // NULL would not be an empty list
	for tool, kept := range r.Tools {
		tools, seconds = append(tools, tool), append(seconds, kept.Seconds())
		if name := (dispatch.Tuple{ToolName: tool}); name.Provider() == name.Operation() { // which agents may also write without the slash
			tools, seconds = append(tools, name.Provider()), append(seconds, kept.Seconds())
		}
	}
	return tools, seconds
}

// rest leaves the disk to the lanes for a while.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
