package compensations

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
)

const (
	// sweepInterval bounds how long a saga stands still whose trigger was lost,
	// with the process that should have pulled it, or that waits for a human.
	sweepInterval = 2 * time.Second
	// sweepLimit bounds one sweep; the oldest sagas come first.
	sweepLimit = 1000
)

// advanceArgs is the job that takes one run back as far as it can go.
type advanceArgs struct {
	AgentRunID string `json:"agent_run_id"`
}

func (advanceArgs) Kind() string { return "saga_advance" }

// sweepArgs is the leader's job that looks for sagas under way.
type sweepArgs struct{}

func (sweepArgs) Kind() string { return "saga_sweep" }

var _ jobs.Part = (*Saga)(nil)

// New is a part for [jobs.New]. The pool is the caller's. It fails for a
// reversal whose payload does not compile.
func New(pool *pgxpool.Pool, policies Policies, log *slog.Logger, registerer prometheus.Registerer) (*Saga, error) {
	mappings, err := policies.mappings()
	if err != nil {
		return nil, err
	}
	return &Saga{pool: pool, policies: policies, mappings: mappings, log: log, observer: newObserver(log, registerer)}, nil
}

// Register adds the saga's workers.
func (s *Saga) Register(workers *river.Workers) {
	river.AddWorker(workers, &advanceWorker{saga: s})
	river.AddWorker(workers, &sweepWorker{saga: s})
}

// Periodic is the sweep.
func (s *Saga) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(sweepInterval),
		func() (river.JobArgs, *river.InsertOpts) { return sweepArgs{}, nil },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}

// Trigger starts a run's next pass.
func Trigger(ctx context.Context, client *jobs.Client, agentRunID string) error {
	if _, err := client.Insert(ctx, advanceArgs{agentRunID}, nil); err != nil {
		return fmt.Errorf("trigger a saga: %w", err)
	}
	return nil
}

type advanceWorker struct {
	river.WorkerDefaults[advanceArgs]
	saga *Saga
}

func (w *advanceWorker) Work(ctx context.Context, job *river.Job[advanceArgs]) error {
	return w.saga.Advance(ctx, job.Args.AgentRunID)
}

type sweepWorker struct {
	river.WorkerDefaults[sweepArgs]
	saga *Saga
}

// Work triggers every saga under way. One trigger a run and interval is enough;
// the job of a process that was killed must not keep the next one out.
func (w *sweepWorker) Work(ctx context.Context, _ *river.Job[sweepArgs]) error {
	runs, err := w.saga.begun(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	inserts := make([]river.InsertManyParams, len(runs))
	for i, run := range runs {
		inserts[i] = river.InsertManyParams{
			Args:       advanceArgs{run},
			InsertOpts: &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: sweepInterval}},
		}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertMany(ctx, inserts); err != nil {
		return fmt.Errorf("trigger sagas: %w", err)
	}
	return nil
}

func (s *Saga) begun(ctx context.Context) ([]string, error) {
	rows, err := s.pool.Query(ctx, `SELECT agent_run_id FROM outbox.saga WHERE state = 'begun' ORDER BY begun_at LIMIT $1`, sweepLimit)
	if err != nil {
		return nil, fmt.Errorf("look for sagas: %w", err)
	}
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for sagas: %w", err)
	}
	return runs, nil
}
