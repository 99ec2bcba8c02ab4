// Package upkeep forgets what the outbox need not remember any more, so that
// it does not grow for ever.
//
// A settled intent is kept for its retention, and so is its key: enqueueing it
// again changes nothing until then, and makes a new intent afterwards. That
// time is the dedupe window which agents can rely on.
//
// The fleet's leader starts a prune every ten minutes. It walks through the
// intents in the order of their ids, a bounded batch a transaction, rests as
// long as it worked, and hands its place on to the next slice until it has
// reached what is too young. What may go is decided in the function
// outbox.prune, which waits for nobody.
package upkeep

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// leastRetention is what outbox.prune accepts.
const leastRetention = time.Hour

const interval = 10 * time.Minute

// Retention is how long settled intents are kept, by the full name of their
// tool, such as stripe/create_charge. Those of other tools are kept for good:
// another process may know better. A key must not be forgotten before its
// provider forgets it.
type Retention map[string]time.Duration

// ErrRetention says that a retention is too short.
var ErrRetention = errors.New("settled intents are kept for an hour at least")

func (r Retention) validate() error {
	for tool, kept := range r {
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
	pace      pace
	log       *slog.Logger
	pruned    prometheus.Counter
}

// New leaves the pool to its owner.
func New(pool *pgxpool.Pool, retention Retention, log *slog.Logger, registerer prometheus.Registerer) (*Upkeep, error) {
	u := &Upkeep{pool: pool, pace: usualPace, log: log, pruned: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "drainer", Name: "pruned_total", Help: "Settled intents that this process forgot because their retention was over.",
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
