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
	// countLimit bounds each count of a provider, a state or a kind.
	countLimit = 10_000
	// strangerLimit bounds the providers that are found in the queue, since these may not be configured.
	strangerLimit = 500
	// lookLimit is how many of the oldest rows or incidents are looked at one by one.
	lookLimit = 500
	// enqueueLimit is how many intents are looked at to count the intents since the
	// sample before.
	enqueueLimit = 2_000
	// longInProgress is longer than a healthy dispatch takes.
	longInProgress = time.Minute
	// windowLag is how long after an enqueue of a duplicate its transaction may commit and still be
	// counted.
	windowLag = 5 * time.Second
)

// tables lists the tables that change with each intent.
var tables = []string{"queue", "claim", "intent", "attempt"}

type store struct {
	pool    *pgxpool.Pool
	process string
}

// window is the range of duplicates that the leader counts next, with the collisions that are counted already.
type window struct {
	mark         time.Time // up to which duplicates are counted
	since, until time.Time
	collisions   int64
}

// lead renews the process's lease, or takes the lease over if no process has a valid one.
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

// planningSQL keeps the planner from scanning whole tables, which it would do if its statistics show them as
// empty.
const planningSQL = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true)`

// sample takes a sample in one transaction. If counting is false, it leaves enqueues, duplicates and collisions to a
// later sample.
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

// names returns the kinds as strings. In the query mode exec, which poolers need, pgx cannot encode a
// slice of a named type.
func names(kinds []incident.Kind) []string {
	names := make([]string, len(kinds))
	for i, kind := range kinds {
		names[i] = string(kind)
	}
	return names
}

// queueOnce queues the statements for enqueues, duplicates and collisions, which are counted only once.
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

// into returns a function that collects a query's rows. The columns must be in the order of the fields.
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
	Duplicates []ProviderCount // not counted before, up to the window's end
	Enqueued   []ProviderCount // not counted before, up to the sample before
	Collisions Collisions
}

// Queue counts the rows that wait for one provider.
type Queue struct {
	Provider string
	Waiting  int // not yet due
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

// Sagas counts the sagas that are begun, and those that failed.
type Sagas struct {
	Begun, Failed int
	OldestBegun   float64
}

// Incidents counts the incidents of one kind that are neither acknowledged nor resolved.
type Incidents struct {
	Kind          string
	Open          int
	Oldest        float64
	OldestUnpaged float64 // age of the oldest incident about which no channel was paged
}

// Table holds statistics of one of the tables that change often.
type Table struct {
	Name       string
	DeadTuples int64
	Bytes      int64
}

// Pin is the oldest holder of one kind that keeps dead rows from being removed.
type Pin struct {
	Holder       string
	XID          string
	Transactions int64   // how many transactions have begun since
	Held         float64 // for how many seconds; 0 if this role may not see it
}

// Collisions counts refused enqueues of a known key with another payload.
type Collisions struct {
	New          int64 // not counted before
	LastProvider string
}

// pins remembers since when each kind of holder has had its oldest transaction, because the database does not
// show that time for replication slots and for sessions of other roles.
type pins map[string]pinned

type pinned struct {
	xid   string
	since time.Time
}

// see sets Held to at least the time for which this process has seen the same transaction.
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

// minutes writes, once a minute, the attempts of this process and the ages that it saw as the leader, for the
// console's last hour. Each process counts its own attempts, because to count them in the table would
// cost more the faster the fleet drains.
type minutes struct {
	counters prometheus.Gatherer // of attempts and their durations; nil: this process makes no attempts
	written  time.Time           // the last written minute, by the local clock
	before   map[string]activity // the counts at that time
	oldest   map[string]float64  // by provider: highest age of the oldest due row since then, in seconds
}

// activity counts one provider's attempts.
type activity struct {
	completed, refused, busy, inDoubt int64
	took                              []int64 // by the buckets of the histogram
}

// Count sets the counters from which the attempts of this process are read. It must be called before [Census.Run].
func (c *Census) Count(counters prometheus.Gatherer) { c.minutes.counters = counters }

// saw keeps the highest age of each provider's oldest due row.
func (m *minutes) saw(rows map[string]*providerRows) {
	for label, row := range rows {
		if label != unconfigured {
			m.oldest[label] = max(m.oldest[label], row.oldestDue)
		}
	}
}

// write writes the minute that has ended. If that fails, the next minute contains the attempts of both.
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

// count returns the total attempts by provider, for each provider with attempts or a known age.
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

// literal returns the text of an array as Postgres reads it.
func literal(counts []int64) string {
	texts := make([]string, len(counts))
	for i, count := range counts {
		texts[i] = strconv.FormatInt(count, 10)
	}
	return "{" + strings.Join(texts, ",") + "}"
}
