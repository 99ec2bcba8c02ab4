package census

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/pgpool"
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
	//go:embed sql/enqueued.sql
	enqueuedSQL string
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
	// enqueueLimit is how many intents are looked at to count those that came since the
	// sample before.
	enqueueLimit = 2_000
	// longInProgress is longer than any healthy dispatch takes.
	longInProgress = time.Minute
	// windowLag is how long a duplicate's transaction may take to commit after it
	// was seen, and still be counted.
	windowLag = 5 * time.Second
)

// tables are those that change with every intent.
var tables = []string{"queue", "claim", "intent", "attempt"}

type store struct {
	pool    *pgxpool.Pool
	process string
}

// window is the range of attempts that the leader has not yet counted.
type window struct {
	mark         time.Time // how far it was counted
	since, until time.Time
	collisions   int64 // that are counted
}

// lead renews the process's lease, or takes it over if none is valid.
func (s store) lead(ctx context.Context) (w window, leads bool, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgpool.Transaction, func(tx pgx.Tx) error {
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
// moment ago, from reading one whole.
const planningSQL = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true)`

// sample reads everything in one transaction. What is counted once is left to a
// later sample unless counting.
func (s store) sample(ctx context.Context, configured *configuration, w window, counting bool) (*Sample, error) {
	sample := &Sample{}
	err := pgx.BeginTxFunc(ctx, s.pool, pgpool.Transaction, func(tx pgx.Tx) error {
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
	batch.Queue(queueSQL, countLimit, configured.labels, strangerLimit).Query(into(&s.Queues))
	batch.Queue(claimsSQL, longInProgress.Seconds()).Query(into(&s.Claims))
	batch.Queue(doubtSQL, tools, nearEnds, lookLimit).Query(into(&s.NearEnd))
	batch.Queue(sagasSQL, countLimit).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.Sagas.Begun, &s.Sagas.Failed, &s.Sagas.OldestBegun)
	})
	batch.Queue(incidentsSQL, names(incident.Kinds()), countLimit, lookLimit, names(incident.Kinds(incident.Page))).Query(into(&s.Incidents))
	batch.Queue(tablesSQL, tables).Query(into(&s.Tables))
	batch.Queue(pinsSQL).Query(into(&s.Pins))
}

// names are the kinds as strings: in the mode exec, which poolers need, pgx encodes no
// slice of a named type.
func names(kinds []incident.Kind) []string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	return names
}

// queueOnce reads what is counted once.
func (s *Sample) queueOnce(batch *pgx.Batch, w window) {
	batch.Queue(duplicatesSQL, w.since, w.until).Query(into(&s.Duplicates))
	batch.Queue(enqueuedSQL, enqueueLimit).Query(into(&s.Enqueued))
	batch.Queue(collisionsSQL).QueryRow(func(row pgx.Row) error {
		var total int64
		err := row.Scan(&total, &s.Collisions.LastProvider)
		s.Collisions.New = max(0, total-w.collisions)
		return err
	})
}

// into collects a query's rows, whose columns stand in the order of the fields.
func into[T any](list *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	}
}

// Sample holds counts of the tables at one moment. Counts that could be large
// stop at a limit. Ages are in seconds.
type Sample struct {
	Queues     []Queue
	Claims     []Claims
	NearEnd    []ProviderCount // rows in doubt whose retries end soon
	Sagas      Sagas
	Incidents  []Incidents
	Tables     []Table
	Pins       []Pin
	Duplicates []ProviderCount // since the sample before
	Enqueued   []ProviderCount // up to the sample before
	Collisions Collisions
}

// Queue counts the rows that wait for one provider.
type Queue struct {
	Provider string
	Waiting  int // for their time
	Due      int
	Oldest   float64 // how long the oldest due row has been due
}

// Claims counts the rows in progress for one provider.
type Claims struct {
	Provider string
	Rows     int64
	Oldest   float64
	Long     int64 // rows in progress for longer than a minute
}

// ProviderCount is a number of rows of one provider.
type ProviderCount struct {
	Provider string
	Rows     int64
}

// Sagas are the agent runs that go back, or could not.
type Sagas struct {
	Begun, Failed int
	OldestBegun   float64
}

// Incidents counts those of one kind that are neither acknowledged nor
// resolved.
type Incidents struct {
	Kind          string
	Open          int
	Oldest        float64
	OldestUnpaged float64 // of those that no channel was notified of
}

// Table is one of the tables that change much.
type Table struct {
	Name       string
	DeadTuples int64
	Bytes      int64
}

// Pin is, of one kind of holder, the one that has kept dead rows from being
// removed for longest.
type Pin struct {
	Holder       string
	XID          string
	Transactions int64   // how many have begun since
	Held         float64 // 0 where this role may not see it
}

// Collisions are refused enqueues of a known key with another payload.
type Collisions struct {
	New          int64 // since the sample before
	LastProvider string
}

// pins remember since when each kind of holder has had its oldest transaction:
// the database does not show that of replication slots and of other roles'
// sessions.
type pins map[string]pinned

type pinned struct {
	xid   string
	since time.Time
}

// see completes how long each has been held, as far as this process saw it.
func (p pins) see(seen []Pin, now time.Time) {
	there := map[string]bool{}
	for i := range seen {
		pin := &seen[i]
		there[pin.Holder] = true
		if p[pin.Holder].xid != pin.XID {
			p[pin.Holder] = pinned{pin.XID, now}
		}
		pin.Held = max(pin.Held, now.Sub(p[pin.Holder].since).Seconds())
	}
	for holder := range p {
		if !there[holder] {
			delete(p, holder)
		}
	}
}

//go:embed sql/minute.sql
var minuteSQL string

// minutes writes once a minute what this process attempted, and what the leader saw of
// queues: the console's last hour. It is counted where attempts are made, because to count
// them in the table would cost the more, the faster it drains.
type minutes struct {
	counters prometheus.Gatherer // of attempts and of how long they took; nil: this process attempts nothing
	written  time.Time           // the minute, as the local clock has it
	before   map[string]activity // what was counted by then
	oldest   map[string]float64  // seconds, at most since then
}

// activity counts one provider's attempts.
type activity struct {
	completed, refused, busy, inDoubt int64
	took                              []int64 // by the buckets of the histogram
}

// Count takes this process's attempts from the counters of its daemon. Call it before [Census.Run].
func (c *Census) Count(counters prometheus.Gatherer) { c.minutes.counters = counters }

// saw keeps the age of each provider's oldest due row.
func (m *minutes) saw(rows map[string]*providerRows) {
	for label, row := range rows {
		if label != unconfigured {
			m.oldest[label] = max(m.oldest[label], row.oldestDue)
		}
	}
}

// write is for the minute that has ended. What it cannot write is in the next one.
func (c *Census) write(ctx context.Context) error {
	m := &c.minutes
	counted, err := m.count()
	if err != nil {
		return fmt.Errorf("count the attempts of a minute: %w", err)
	}
	var names, took []string
	var completed, refused, busy, inDoubt []int64
	var oldest []float64
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		now := counted[name].since(m.before[name])
		if age, seen := m.oldest[name]; seen || now.completed+now.refused+now.busy+now.inDoubt > 0 {
			names, took, oldest = append(names, name), append(took, literal(now.took)), append(oldest, age)
			completed, refused, busy, inDoubt = append(completed, now.completed), append(refused, now.refused), append(busy, now.busy), append(inDoubt, now.inDoubt)
		}
	}
	if len(names) > 0 {
		if _, err := c.store.pool.Exec(ctx, minuteSQL, names, completed, refused, busy, inDoubt, took, oldest); err != nil {
			return fmt.Errorf("write the last minute: %w", err)
		}
	}
	m.before, m.oldest = counted, map[string]float64{}
	return nil
}

// count has an entry for each provider of which anything is known.
func (m *minutes) count() (map[string]activity, error) {
	all := map[string]activity{}
	for name := range m.oldest {
		all[name] = activity{}
	}
	if m.counters == nil {
		return all, nil
	}
	families, err := m.counters.Gather()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			provider, outcome := label(metric, "provider"), label(metric, "outcome")
			if provider == unconfigured {
				continue
			}
			one := all[provider]
			one.add(dispatch.Outcome(outcome), int64(metric.GetCounter().GetValue()))
			if histogram := metric.GetHistogram(); histogram != nil {
				one.took = buckets(histogram)
			}
			all[provider] = one
		}
	}
	return all, nil
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

func (a *activity) add(outcome dispatch.Outcome, count int64) {
	switch outcome {
	case dispatch.Completed:
		a.completed += count
	case dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.Absent:
		a.refused += count
	case dispatch.NotSent, dispatch.Throttled, dispatch.InFlight:
		a.busy += count
	case dispatch.Ambiguous, dispatch.Lost:
		a.inDoubt += count
	case dispatch.Released: // nothing was attempted
	}
}

func buckets(histogram *dto.Histogram) (counts []int64) {
	var below uint64
	for _, bucket := range histogram.GetBucket() {
		counts = append(counts, int64(bucket.GetCumulativeCount()-below))
		below = bucket.GetCumulativeCount()
	}
	return append(counts, int64(histogram.GetSampleCount()-below))
}

func (a activity) since(before activity) activity {
	grown := activity{completed: a.completed - before.completed, refused: a.refused - before.refused, busy: a.busy - before.busy, inDoubt: a.inDoubt - before.inDoubt, took: slices.Clone(a.took)}
	for i := range min(len(grown.took), len(before.took)) {
		grown.took[i] -= before.took[i]
	}
	return grown
}

// literal writes an array as Postgres reads it.
func literal(counts []int64) string {
	texts := make([]string, len(counts))
	for i, count := range counts {
		texts[i] = strconv.FormatInt(count, 10)
	}
	return "{" + strings.Join(texts, ",") + "}"
}
