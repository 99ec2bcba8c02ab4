package census

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	//go:embed sql/lead.sql
	leadSQL string
	//go:embed sql/resign.sql
	resignSQL string
	//go:embed sql/counted.sql
	countedSQL string
	//go:embed sql/queue.sql
	queueSQL string
	//go:embed sql/claims.sql
	claimsSQL string
	//go:embed sql/doubt.sql
	doubtSQL string
	//go:embed sql/sagas.sql
	sagasSQL string
	//go:embed sql/incidents.sql
	incidentsSQL string
	//go:embed sql/tables.sql
	tablesSQL string
	//go:embed sql/pins.sql
	pinsSQL string
	//go:embed sql/duplicates.sql
	duplicatesSQL string
	//go:embed sql/collisions.sql
	collisionsSQL string
)

const (
	// countLimit is where a count stops, of each provider's, state's or kind's.
	countLimit = 10_000
	// strangerLimit is how many providers are looked at that may not be configured.
	strangerLimit = 500
	// lookLimit is how many of the oldest are looked at one by one.
	lookLimit = 500
	// longInProgress is what a dispatch takes only if something is wrong.
	longInProgress = time.Minute
	// windowLag is how long a duplicate's transaction may take to commit after it
	// was seen, and still be counted.
	windowLag = 5 * time.Second
)

// tables are those that change with every intent.
var tables = []string{"queue", "claim", "intent", "attempt"}

// kinds of incidents, as the table knows them.
var kinds = []string{"outcome_unknown", "compensation_failed", "reversal_window_expired", "key_collision", "unconfigured_provider"}

type store struct {
	pool    *pgxpool.Pool
	process string
}

// window is what a leader has still to count of what is counted once.
type window struct {
	mark         time.Time // how far it was counted
	since, until time.Time
	collisions   int64 // that are counted
}

// lead renews the process's lease, or takes it over where nobody's is valid.
func (s store) lead(ctx context.Context) (w window, leads bool, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, leadSQL, s.process, lease.Seconds(), windowLag.Seconds()).Scan(&w.mark, &w.since, &w.until, &w.collisions)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return window{}, false, nil
	}
	if err != nil {
		return window{}, false, fmt.Errorf("lead the census: %w", err)
	}
	return w, true, nil
}

func (s store) resign(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, resignSQL, s.process); err != nil {
		return fmt.Errorf("resign from the census: %w", err)
	}
	return nil
}

// errReplaced says that another process has counted meanwhile.
var errReplaced = errors.New("another process leads the census by now")

// planningSQL keeps the planner, whatever it believes of tables that were empty a
// moment ago, from reading one whole, and from compiling what takes a moment.
const planningSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`

// sample reads everything in one transaction. What is counted once is left to a
// later sample unless counting.
func (s store) sample(ctx context.Context, configured *configuration, w window, counting bool) (*Sample, error) {
	sample := &Sample{}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(planningSQL)
		sample.queue(batch, configured)
		if counting {
			sample.queueOnce(batch, w)
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil || !counting {
			return err
		}
		written, err := tx.Exec(ctx, countedSQL, s.process, w.mark, w.until, w.collisions+sample.Collisions.New)
		if err == nil && written.RowsAffected() == 0 {
			return errReplaced
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sample the outbox: %w", err)
	}
	return sample, nil
}

func (s *Sample) queue(batch *pgx.Batch, configured *configuration) {
	tools, nearEnds := configured.nearEnds()
	batch.Queue(queueSQL, countLimit, configured.labels, strangerLimit).Query(into(&s.Queues, func(row pgx.CollectableRow, q *Queue) error {
		return row.Scan(&q.Provider, &q.Waiting, &q.Due, seconds{&q.Oldest})
	}))
	batch.Queue(claimsSQL, longInProgress.Seconds()).Query(into(&s.Claims, func(row pgx.CollectableRow, c *Claims) error {
		return row.Scan(&c.Provider, &c.Rows, seconds{&c.Oldest}, &c.Long)
	}))
	batch.Queue(doubtSQL, tools, nearEnds, lookLimit).Query(into(&s.NearEnd, scanCount))
	batch.Queue(sagasSQL, countLimit).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.Sagas.Begun, &s.Sagas.Failed, seconds{&s.Sagas.OldestBegun})
	})
	batch.Queue(incidentsSQL, kinds, countLimit, lookLimit).Query(into(&s.Incidents, func(row pgx.CollectableRow, i *Incidents) error {
		return row.Scan(&i.Kind, &i.Open, seconds{&i.Oldest}, seconds{&i.OldestUntold})
	}))
	batch.Queue(tablesSQL, tables).Query(into(&s.Tables, func(row pgx.CollectableRow, t *Table) error {
		return row.Scan(&t.Name, &t.DeadTuples, &t.Bytes)
	}))
	batch.Queue(pinsSQL).Query(into(&s.Pins, func(row pgx.CollectableRow, p *Pin) error {
		return row.Scan(&p.Holder, &p.XID, &p.Transactions, seconds{&p.Held})
	}))
}

// queueOnce reads what is counted once.
func (s *Sample) queueOnce(batch *pgx.Batch, w window) {
	batch.Queue(duplicatesSQL, w.since, w.until).Query(into(&s.Duplicates, scanCount))
	batch.Queue(collisionsSQL).QueryRow(func(row pgx.Row) error {
		var total int64
		err := row.Scan(&total, &s.Collisions.LastProvider)
		s.Collisions.New = max(0, total-w.collisions)
		return err
	})
}

func scanCount(row pgx.CollectableRow, c *ProviderCount) error { return row.Scan(&c.Provider, &c.Rows) }

// into collects a query's rows.
func into[T any](list *[]T, scan func(pgx.CollectableRow, *T) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (one T, err error) {
			err = scan(row, &one)
			return one, err
		})
		return err
	}
}

// seconds scans a number of them.
type seconds struct{ *time.Duration }

func (s seconds) Scan(value any) error {
	number, is := value.(float64)
	if !is {
		return fmt.Errorf("%T is no number of seconds", value)
	}
	*s.Duration = time.Duration(number * float64(time.Second))
	return nil
}
