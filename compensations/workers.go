package compensations

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
)

// advanceArgs is the job that takes one run back as far as it can go.
type advanceArgs struct {
	AgentRunID string `json:"agent_run_id"`
}

func (advanceArgs) Kind() string { return "saga_advance" }

// InsertOpts leaves repeating to the sweep: it does so sooner than River, and
// while a pass fails, its retries would add up.
func (advanceArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

var _ jobs.Part = (*Saga)(nil)

// New is a part for [jobs.New]. The pool is the caller's. It fails for a
// reversal whose payload does not compile.
func New(pool *pgxpool.Pool, policies Policies, log *slog.Logger, registerer prometheus.Registerer) (*Saga, error) {
	s := &Saga{pool: pool, log: log}
	use, err := s.Prepare(policies)
	if err != nil {
		return nil, err
	}
	use()
	s.observer = newObserver(log, registerer)
	return s, nil
}

// Prepare readies other policies, and fails where New would. They count once
// use is called.
func (s *Saga) Prepare(policies Policies) (use func(), err error) {
	mappings, err := policies.mappings()
	if err != nil {
		return nil, err
	}
	return func() { s.tools.Store(&tools{policies, mappings}) }, nil
}

// Register adds the saga's worker.
func (s *Saga) Register(workers *river.Workers) {
	river.AddWorker(workers, &advanceWorker{saga: s})
}

// Periodic is empty: [Triggers] do not wait for a leader.
func (s *Saga) Periodic() []*river.PeriodicJob { return nil }

type advanceWorker struct {
	river.WorkerDefaults[advanceArgs]
	saga *Saga
}

func (w *advanceWorker) Work(ctx context.Context, job *river.Job[advanceArgs]) error {
	return w.saga.Advance(ctx, job.Args.AgentRunID)
}
