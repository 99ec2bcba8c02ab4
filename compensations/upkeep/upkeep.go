// Package upkeep deletes old settled intents, so that the outbox does not grow forever.
//
// A settled intent is kept for its retention, and so is its key. To enqueue the same key
// changes nothing until then, and makes a new intent afterwards. So the retention is the
// dedupe window on which agents can rely.
//
// The fleet's leader starts a prune every ten minutes. A prune walks through the intents in the
// order of their ids. It deletes a bounded batch in each transaction, and rests after each as long
// as the batch took. The next slice goes on where a slice ended, until the prune reaches
// intents that are too young. The function outbox.prune decides which intents may be deleted, and
// waits for no lock. It keeps all intents for at least as long as the schema's owner says in
// outbox.setting, even if a daemon asks for less.
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
	// Tools holds the retention of each tool, by its full name, such as stripe/create_charge. Intents
	// of other tools are kept for good, since another process may have their retention. A retention
	// must not be shorter than the time for which the provider remembers a key.
	Tools map[string]time.Duration
	// MaxRun is how long the intents of a run that is still in use are kept at most.
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
	overruled atomic.Pointer[Retention] // the retention that was last compared with the owner's
	pace      pace
	log       *slog.Logger
	pruned    prometheus.Counter
}

// New returns an Upkeep with its metric registered, or [ErrRetention]. The caller closes the pool.
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

// Prepare checks another retention, and fails like New. The retention takes effect with the
// next batch after use is called.
func (u *Upkeep) Prepare(retention Retention) (use func(), err error) {
	if err := retention.validate(); err != nil {
		return nil, err
	}
	return func() { u.retention.Store(&retention) }, nil
}

// Kinds implements [jobs.Part].
func (u *Upkeep) Kinds() []string { return []string{pruneArgs{}.Kind()} }

// Register adds the worker that prunes.
func (u *Upkeep) Register(workers *river.Workers) { river.AddWorker(workers, &pruneWorker{upkeep: u}) }

// Periodic returns the prune. It starts when the process begins to lead, and then every ten minutes
// unless the last prune still runs.
func (u *Upkeep) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(interval),
		func() (river.JobArgs, *river.InsertOpts) { return pruneArgs{}, onlyOne },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}

// onlyOne lets one prune exist at a time. It turns retries off too, since the next prune comes soon.
var onlyOne = &river.InsertOpts{
	MaxAttempts: 1,
	UniqueOpts: river.UniqueOpts{ByQueue: true, ByState: []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
		rivertype.JobStateRetryable, rivertype.JobStateScheduled,
	}},
}

// pace bounds the load that a prune puts on the database.
type pace struct {
	looks int           // how many intents one transaction looks at
	slice time.Duration // after how long a run of the job ends
}

// forGood is the retention of tools that have none: longer than any outbox exists.
const forGood = 100 * 365 * 24 * time.Hour

var usualPace = pace{looks: 1000, slice: 30 * time.Second}

type pruneArgs struct{}

func (pruneArgs) Kind() string { return "prune" }

type pruneWorker struct {
	river.WorkerDefaults[pruneArgs]
	upkeep *Upkeep
}

// Work prunes one slice of the intents. It keeps the place where it ended as the job's output. If each slice
// began at the first intent, it would never get past many intents with a longer retention.
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

// slice prunes batch after batch. It returns the id after which the next slice goes on, or nil at the end.
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

// batch prunes one batch after an id. It sets READ COMMITTED, since the role's default may be stricter.
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

// sayWhereTheOwnerOverrules logs, once for each configuration, if the schema's owner keeps intents longer than
// the configuration says.
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
		if name := (dispatch.Tuple{ToolName: tool}); name.Provider() == name.Operation() { // agents may also write such a tool without the slash
			tools, seconds = append(tools, name.Provider()), append(seconds, kept.Seconds())
		}
	}
	return tools, seconds
}

// rest waits for d, so that the lanes can use the disk.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
