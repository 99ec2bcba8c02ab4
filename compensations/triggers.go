package compensations

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
)

//go:embed sql/begun.sql
var begunSQL string

const (
	// sweepInterval bounds how long a saga stands still when the trigger of its
	// next pass was lost, for instance with a process that was killed.
	sweepInterval = 2 * time.Second
	// sweepLimit bounds one sweep, well below what River works off meanwhile.
	sweepLimit = 40
	// swept jobs come after those of sagas that moved.
	swept = 4
	// triggerRoom is how many moves may wait for River.
	triggerRoom = 1000
)

// Triggers start the passes: of a saga that moved at once, and of every saga
// under way by the clock. Each process sweeps by itself, rather than River's
// leader alone: if the leader is killed, there is no other for up to 20 s.
type Triggers struct {
	pool   *pgxpool.Pool
	client *jobs.Client
	log    *slog.Logger
	moved  chan string
}

// NewTriggers starts nothing before [Triggers.Run]. The pool is the caller's.
func NewTriggers(pool *pgxpool.Pool, client *jobs.Client, log *slog.Logger) *Triggers {
	return &Triggers{pool: pool, client: client, log: log, moved: make(chan string, triggerRoom)}
}

// Moved says that a run's saga began or that an undo of it ended. It never
// waits, as the lanes must not: without room the next sweep finds the saga.
func (t *Triggers) Moved(agentRunID string) {
	select {
	case t.moved <- agentRunID:
	default:
	}
}

// Run triggers until ctx ends.
func (t *Triggers) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	t.warn(ctx, t.sweep(ctx))
	for {
		select {
		case <-ctx.Done():
			return nil
		case run := <-t.moved:
			t.warn(ctx, Trigger(ctx, t.client, run))
		case <-ticker.C:
			t.warn(ctx, t.sweep(ctx))
		}
	}
}

func (t *Triggers) warn(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		t.log.Warn("cannot trigger sagas now; the next sweep will", "error", err)
	}
}

// Trigger starts a run's next pass.
func Trigger(ctx context.Context, client *jobs.Client, agentRunID string) error {
	if _, err := client.Insert(ctx, advanceArgs{agentRunID}, &river.InsertOpts{Queue: jobs.QueueSagas}); err != nil {
		return fmt.Errorf("trigger a saga: %w", err)
	}
	return nil
}

// sweep triggers every saga under way for which no job waits. One job a run and interval is enough for
// all processes. It is unique for the interval only: the job of a process that
// was killed counts as running for long, and must not keep the next one out.
func (t *Triggers) sweep(ctx context.Context) error {
	runs, err := t.begun(ctx)
	if err != nil || len(runs) == 0 {
		return err
	}
	inserts := make([]river.InsertManyParams, len(runs))
	for i, run := range runs {
		inserts[i] = river.InsertManyParams{
			Args:       advanceArgs{run},
			InsertOpts: &river.InsertOpts{Queue: jobs.QueueSagas, Priority: swept, UniqueOpts: river.UniqueOpts{ByArgs: true, ByPeriod: sweepInterval}},
		}
	}
	if _, err := t.client.InsertMany(ctx, inserts); err != nil {
		return fmt.Errorf("trigger sagas: %w", err)
	}
	return nil
}

// begun are runs on their way back that nobody is about to take further.
func (t *Triggers) begun(ctx context.Context) ([]string, error) {
	rows, _ := t.pool.Query(ctx, begunSQL, sweepLimit, advanceArgs{}.Kind()) // CollectRows returns the error too
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for sagas: %w", err)
	}
	return runs, nil
}
