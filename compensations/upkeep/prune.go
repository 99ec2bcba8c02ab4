package upkeep

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

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
	err = pgx.BeginTxFunc(ctx, u.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tools, seconds := u.retention.Load().columns()
		return tx.QueryRow(ctx, `SELECT pruned, next FROM outbox.prune($1, $2, $3, $4, $5)`,
			after, u.pace.looks, forGood.Seconds(), tools, seconds).Scan(&pruned, &next)
	})
	if err != nil {
		return 0, nil, fmt.Errorf("prune: %w", err)
	}
	return pruned, next, nil
}

func (r Retention) columns() (tools []string, seconds []float64) {
	tools, seconds = []string{}, []float64{} // NULL would not be an empty list
	for tool, kept := range r {
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
