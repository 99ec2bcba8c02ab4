// Package census counts the contents of the outbox's tables for the metrics. It counts the rows that
// wait, are in progress or are in doubt, with their ages, and the open sagas and incidents. It also
// shows causes of a slow database, such as dead rows.
//
// Each process also writes its own attempts once a minute, for the console's last hour.
//
// One of all processes leads, by a lease in a row that it renews every other second. Only the leader
// counts and shows the counts, so that neither the database's load nor the sums grow with the
// replicas. If it dies, another process takes over within seconds. If it can no longer count, it
// soon shows nothing.
//
// A sample reads a bounded number of index entries, independently of the number of rows. Counts that could
// be high stop at a limit, and numbers of dead rows come from the database's own statistics.
//
// Enqueues, duplicates and collisions only grow, so each of them is counted once. The leader stores how
// far it has counted, so that a successor goes on from there.
package census

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const (
	// renewInterval is how often the leader renews its lease, and others try to
	// take it. A dead leader is replaced within the sum of lease and renewInterval.
	renewInterval  = 2 * time.Second
	lease          = 6 * time.Second
	sampleInterval = 10 * time.Second
	sampleTimeout  = 10 * time.Second
	// reminderInterval is the least time between two warnings about rows of an unconfigured provider.
	reminderInterval = time.Minute
)

// Census is one process's part of the counting. [New] creates one.
type Census struct {
	store    store
	board    *board
	counters *counters
	leads    prometheus.Gauge
	log      *slog.Logger

	configured atomic.Pointer[configuration]

	// Only Run uses these.
	minutes  minutes
	pins     pins
	sampled  time.Time
	reminded time.Time
}

// New registers the census's metrics. It counts nothing before [Census.Run]. The caller closes the pool.
func New(pool *pgxpool.Pool, providers []dispatch.Provider, log *slog.Logger, registerer prometheus.Registerer) *Census {
	c := &Census{
		store:    store{pool: pool, process: uuid.NewString()},
		counters: newCounters(),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "census_leader", Help: "1 on the process that counts the tables, 0 on the others.",
		}),
		log:     log,
		pins:    pins{},
		minutes: minutes{written: time.Now().Truncate(time.Minute), oldest: map[string]float64{}},
	}
	c.board = &board{configured: &c.configured, made: time.Now()}
	c.Use(providers)
	registerer.MustRegister(c.board, c.counters.enqueued, c.counters.duplicates, c.counters.collisions, c.leads)
	return c
}

// Use replaces the configuration, from which the metrics have their labels.
func (c *Census) Use(providers []dispatch.Provider) {
	configured := configurationOf(providers)
	c.counters.announce(configured.labels)
	c.configured.Store(configured)
}

// Run counts while this process leads, until ctx ends.
func (c *Census) Run(ctx context.Context) error {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	defer c.resign(ctx)
	for {
		c.round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// round renews the lease or tries to get it, and takes a sample if one is due.
func (c *Census) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	window, leads, err := c.store.lead(ctx)
	if err == nil {
		c.lead(leads)
		if leads && time.Since(c.sampled) >= sampleInterval {
			err = c.sample(ctx, window)
		}
	}
	if minute := time.Now().Truncate(time.Minute); err == nil && minute.After(c.minutes.written) {
		if err = c.write(ctx); err == nil {
			c.minutes.written = minute
		}
	}
	if err != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
		c.log.Warn("cannot count what the tables hold; its gauges are absent until a process can", "error", err)
	}
}

func (c *Census) lead(leads bool) {
	c.leads.Set(0)
	if leads {
		c.leads.Set(1)
		return
	}
	c.board.clear()
	c.pins, c.sampled = pins{}, time.Time{}
}

func (c *Census) sample(ctx context.Context, window window) error {
	started := time.Now()
	counting := c.board.wasRead()
	sample, err := c.store.sample(ctx, c.configured.Load(), window, counting)
	if err != nil {
		return err
	}
	c.pins.see(sample.Pins, started)
	c.sampled = started
	c.board.show(sample, time.Since(started))
	rows := c.board.byLabel()
	c.minutes.saw(rows)
	c.counters.add(sample, c.configured.Load())
	c.remind(rows[unconfigured])
	return nil
}

// remind warns about rows for which this process has no lane. It does not name their provider, because the name is a
// part of a key.
func (c *Census) remind(rows *providerRows) {
	if waiting := int64(rows.waiting+rows.due) + rows.long; waiting > 0 && time.Since(c.reminded) >= reminderInterval {
		c.reminded = time.Now()
		c.log.Warn("rows wait for a provider that is not configured here; drainer doctor names it", "rows", waiting)
	}
}

// resign gives the lease up, so that the others need not wait for its end.
func (c *Census) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewInterval)
	defer cancel()
	c.lead(false)
	if err := c.write(ctx); err != nil {
		c.log.Warn("the attempts of the last minute are not in the console's charts", "error", err)
	}
	if err := c.store.resign(ctx); err != nil {
		c.log.Warn("cannot hand over the counting; another process takes it when the lease is over", "error", err)
	}
}

// unconfigured is the label of all providers that are not in the configuration, because a row must never create a
// label.
const unconfigured = "unconfigured"

// configuration holds the labels, and the facts about tools that a sample needs.
type configuration struct {
	labels  []string                 // all providers, and unconfigured
	parked  map[string]string        // providers by the full names of their tools: rows of a shut tool wait under this name
	windows map[string]time.Duration // by a tool's full name: how long after the first send a row in doubt is retried, if not forever
}

func configurationOf(providers []dispatch.Provider) *configuration {
	c := &configuration{labels: []string{unconfigured}, parked: map[string]string{}, windows: map[string]time.Duration{}}
	for _, provider := range providers {
		c.labels = append(c.labels, provider.Name)
		for operation, policy := range provider.Tools {
			c.parked[provider.Name+"/"+operation] = provider.Name
			if window, ends := policy.RetryWindow(); ends {
				c.windows[provider.Name+"/"+operation] = window
			}
		}
	}
	return c
}

// label returns the label of a lane, which is a provider or a tool.
func (c *configuration) label(lane string) string {
	if slices.Contains(c.labels, lane) {
		return lane
	}
	return cmp.Or(c.parked[lane], unconfigured)
}

// nearEnd is the part of the time for a tool's retries after which their end is near.
const nearEnd = 0.75

// nearEnds lists tools, and for each how many seconds after a first send the end of its retries is near.
func (c *configuration) nearEnds() (tools []string, seconds []float64) {
	tools, seconds = []string{}, []float64{} // NULL would not be an empty list
	for tool, window := range c.windows {
		near := window.Seconds() * nearEnd
		tools, seconds = append(tools, tool), append(seconds, near)
		if provider, operation, slashed := strings.Cut(tool, "/"); slashed && provider == operation {
			tools, seconds = append(tools, provider), append(seconds, near) // agents may leave out the slash
		}
	}
	return tools, seconds
}

// boardLife is how long a sample is shown. After that another process may lead, and old counts of this process must not
// be added to the new ones.
const boardLife = lease + sampleInterval

// unreadFor is how long counting waits at most until Prometheus has scraped the initial zero of the
// counters. Without that scrape, rate() misses the first increase.
const unreadFor = time.Minute

// board is the collector of all gauges. It shows either the whole last sample or nothing.
type board struct {
	configured *atomic.Pointer[configuration]
	made       time.Time
	read       atomic.Bool

	mu      sync.Mutex
	sample  *Sample // nil while another process leads
	took    time.Duration
	shownAt time.Time
}

func (b *board) show(sample *Sample, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sample, b.took, b.shownAt = sample, took, time.Now()
}

func (b *board) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sample = nil
}

// wasRead reports whether the initial zero has been scraped, so that rate()
// sees the next increase.
func (b *board) wasRead() bool { return b.read.Load() || time.Since(b.made) > unreadFor }

// IsGauge marks the collector's metrics as gauges for the generated documentation.
func (b *board) IsGauge() {}

// Describe implements prometheus.Collector.
func (b *board) Describe(descriptions chan<- *prometheus.Desc) {
	for _, gauge := range gauges {
		descriptions <- gauge
	}
}

// Collect shows the last sample, if it is not older than boardLife.
func (b *board) Collect(values chan<- prometheus.Metric) {
	b.read.Store(true)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sample == nil || time.Since(b.shownAt) > boardLife {
		return
	}
	set := func(gauge *prometheus.Desc, value float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(gauge, prometheus.GaugeValue, value, labels...)
	}
	set(duration, b.took.Seconds())
	for label, rows := range b.byLabel() {
		set(outboxRows, float64(rows.waiting+rows.due), label, "pending")
		set(outboxRows, float64(rows.inProgress), label, "in_progress")
		set(dueRows, float64(rows.due), label)
		set(oldestDue, rows.oldestDue, label)
		set(oldestInProgress, rows.oldestInProgress, label)
		set(longRows, float64(rows.long), label)
		set(nearEndRows, float64(rows.nearEnd), label)
	}
	b.sample.showShared(set)
}

// providerRows counts the rows of one label.
type providerRows struct {
	waiting, due                int
	inProgress, long, nearEnd   int64
	oldestDue, oldestInProgress float64 // seconds
}

// byLabel counts the sample's rows by label. It has an entry for each configured provider, so that an empty queue shows
// as zero, and one for all other providers together.
func (b *board) byLabel() map[string]*providerRows {
	rows, configured := map[string]*providerRows{}, b.configured.Load()
	for _, label := range configured.labels {
		rows[label] = &providerRows{}
	}
	of := func(provider string) *providerRows { return rows[configured.label(provider)] }
	for _, queued := range b.sample.Queues {
		r := of(queued.Provider)
		r.waiting += queued.Waiting
		if configured.parked[queued.Provider] != "" { // not due: a shut operation has alerts of its own
			r.waiting += queued.Due
			continue
		}
		r.due += queued.Due
		r.oldestDue = max(r.oldestDue, queued.Oldest)
	}
	for _, claims := range b.sample.Claims {
		r := of(claims.Provider)
		r.inProgress += claims.Rows
		r.long += claims.Long
		r.oldestInProgress = max(r.oldestInProgress, claims.Oldest)
	}
	for _, near := range b.sample.NearEnd {
		of(near.Provider).nearEnd += near.Rows
	}
	return rows
}

// showShared sets the gauges without a provider.
func (s *Sample) showShared(set func(gauge *prometheus.Desc, value float64, labels ...string)) {
	set(sagas, float64(s.Sagas.Begun), "begun")
	set(sagas, float64(s.Sagas.Failed), "compensation_failed")
	set(oldestSaga, s.Sagas.OldestBegun)
	unpaged := 0.0
	for _, incidents := range s.Incidents {
		set(incidentsOpen, float64(incidents.Open), incidents.Kind)
		set(oldestIncident, incidents.Oldest, incidents.Kind)
		unpaged = max(unpaged, incidents.OldestUnpaged)
	}
	set(oldestUnpaged, unpaged)
	for _, table := range s.Tables {
		set(deadTuples, float64(table.DeadTuples), table.Name)
		set(tableBytes, float64(table.Bytes), table.Name)
	}
	for holder, pin := range s.pinsByHolder() {
		set(xminSeconds, pin.Held, holder)
		set(xminTransactions, float64(pin.Transactions), holder)
	}
}

// holders are the kinds of objects that can keep dead rows from being removed.
var holders = []string{"transaction", "prepared_transaction", "replication_slot", "standby"}

func (s *Sample) pinsByHolder() map[string]Pin {
	pins := map[string]Pin{}
	for _, holder := range holders {
		pins[holder] = Pin{}
	}
	for _, pin := range s.Pins {
		pins[pin.Holder] = pin
	}
	return pins
}

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("drainer_"+name, help, labels, nil)
}

var (
	outboxRows       = gauge("outbox_rows", "Rows by state, pending ones counted to 10,000 due and 10,000 not yet due.", "provider", "state")
	dueRows          = gauge("outbox_due_rows", "Due rows that wait for no shut operation, counted to 10,000.", "provider")
	oldestDue        = gauge("outbox_oldest_due_age_seconds", "How long the oldest row has been due that waits for no shut operation.", "provider")
	oldestInProgress = gauge("outbox_oldest_in_progress_age_seconds", "How long the oldest claim has been in progress.", "provider")
	longRows         = gauge("outbox_long_in_progress_rows", "Rows in progress for more than a minute.", "provider")
	nearEndRows      = gauge("outbox_key_ttl_near_rows", "Rows in doubt, among the 500 oldest, whose retries end soon, because the provider may forget their key.", "provider")

	sagas      = gauge("sagas", "Sagas by state, counted to 10,000.", "state")
	oldestSaga = gauge("sagas_oldest_begun_age_seconds", "Age of the oldest saga that has not ended.")

	incidentsOpen  = gauge("incidents_open", "Open incidents, counted to 10,000.", "kind")
	oldestIncident = gauge("incidents_oldest_open_age_seconds", "How long the oldest open incident has been open.", "kind")
	oldestUnpaged  = gauge("incidents_oldest_unpaged_age_seconds", "Age of the oldest open incident that no channel took a page about.")

	deadTuples       = gauge("postgres_dead_tuples", "Dead rows, by the database's estimate.", "table")
	tableBytes       = gauge("postgres_table_bytes", "Size on disk, indexes included.", "table")
	xminSeconds      = gauge("postgres_oldest_xmin_age_seconds", "How long the holder of the oldest snapshot has kept dead rows, as far as known.", "holder")
	xminTransactions = gauge("postgres_oldest_xmin_age_transactions", "How many transactions have begun since the oldest snapshot.", "holder")

	duration = gauge("census_duration_seconds", "Duration of the last count.")
)

var gauges = []*prometheus.Desc{
	outboxRows, dueRows, oldestDue, oldestInProgress, longRows, nearEndRows,
	sagas, oldestSaga, incidentsOpen, oldestIncident, oldestUnpaged,
	deadTuples, tableBytes, xminSeconds, xminTransactions, duration,
}

// counters count each event once in the fleet. Only the leader counts, so the sum over all processes is the
// total.
type counters struct {
	enqueued   *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	collisions *prometheus.CounterVec
}

func newCounters() *counters {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "drainer", Name: name, Help: help}, []string{"provider"})
	}
	return &counters{
		enqueued:   counter("enqueued_total", "Intents that were enqueued, undos too; many at once are estimated from 2,000 of them."),
		duplicates: counter("duplicates_total", "Enqueues of a key that was already there."),
		collisions: counter("idempotency_key_collisions_total", "Enqueues refused because their key holds another payload; must stay zero."),
	}
}

// announce makes the counters of each provider, so that they start at 0 and rate() sees the first increase.
func (c *counters) announce(labels []string) {
	for _, label := range labels {
		c.enqueued.WithLabelValues(label)
		c.duplicates.WithLabelValues(label)
		c.collisions.WithLabelValues(label)
	}
}

func (c *counters) add(sample *Sample, configured *configuration) {
	for _, enqueued := range sample.Enqueued {
		c.enqueued.WithLabelValues(configured.label(enqueued.Provider)).Add(float64(enqueued.Rows))
	}
	for _, duplicates := range sample.Duplicates {
		c.duplicates.WithLabelValues(configured.label(duplicates.Provider)).Add(float64(duplicates.Rows))
	}
	if sample.Collisions.New > 0 {
		c.collisions.WithLabelValues(configured.label(sample.Collisions.LastProvider)).Add(float64(sample.Collisions.New))
	}
}

// OpenPool returns a pool of one connection, which only the census uses: if it had to wait for other work, it could lose
// its lease. It connects lazily.
func OpenPool(ctx context.Context, database *pgpool.Database) (*pgxpool.Pool, error) {
	return pgpool.Open(ctx, database, 1)
}
