package census

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// boardLife is how long a sample is shown: another process may lead by the end
// of it, and what this one knew must not stand beside that.
const boardLife = lease + sampleInterval

// unreadFor is how long counting waits for somebody to have read the zero that
// the counters start from.
const unreadFor = time.Minute

// board is the collector of all gauges. It shows the last sample, whole, or
// nothing.
type board struct {
	label  func(provider string) string
	labels func() []string
	made   time.Time
	read   atomic.Bool

	mu      sync.Mutex
	sample  *Sample // nil while another process leads
	took    time.Duration
	shownAt time.Time
}

func newBoard(label func(string) string, labels func() []string) *board {
	return &board{label: label, labels: labels, made: time.Now()}
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

// wasRead reports whether an increase will be seen as one by whoever reads.
func (b *board) wasRead() bool { return b.read.Load() || time.Since(b.made) > unreadFor }

// IsGauge is for the list of metrics in the documentation.
func (b *board) IsGauge() {}

// Describe lists every gauge.
func (b *board) Describe(descriptions chan<- *prometheus.Desc) {
	for _, gauge := range gauges {
		descriptions <- gauge
	}
}

// Collect shows nothing that is old.
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
		set(oldestDue, rows.oldestDue.Seconds(), label)
		set(oldestInProgress, rows.oldestInProgress.Seconds(), label)
		set(longRows, float64(rows.long), label)
		set(nearEndRows, float64(rows.nearEnd), label)
	}
	b.sample.showShared(set)
}

// providerRows are those of one label.
type providerRows struct {
	waiting, due                int
	inProgress, long, nearEnd   int64
	oldestDue, oldestInProgress time.Duration
}

// byLabel has an entry for every configured provider, so that an emptied queue
// shows as zero, and one for all the others together.
func (b *board) byLabel() map[string]*providerRows {
	rows := map[string]*providerRows{}
	for _, label := range b.labels() {
		rows[label] = &providerRows{}
	}
	of := func(provider string) *providerRows { return rows[b.label(provider)] }
	for _, queued := range b.sample.Queues {
		r := of(queued.Provider)
		r.waiting += queued.Waiting
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

// showShared shows what belongs to no provider.
func (s *Sample) showShared(set func(gauge *prometheus.Desc, value float64, labels ...string)) {
	set(sagas, float64(s.Sagas.Begun), "begun")
	set(sagas, float64(s.Sagas.Failed), "compensation_failed")
	set(oldestSaga, s.Sagas.OldestBegun.Seconds())
	var untold time.Duration
	for _, incidents := range s.Incidents {
		set(incidentsOpen, float64(incidents.Open), incidents.Kind)
		set(oldestIncident, incidents.Oldest.Seconds(), incidents.Kind)
		untold = max(untold, incidents.OldestUntold)
	}
	set(oldestUntold, untold.Seconds())
	for _, table := range s.Tables {
		set(deadTuples, float64(table.DeadTuples), table.Name)
		set(tableBytes, float64(table.Bytes), table.Name)
	}
	for holder, pin := range s.pinsByHolder() {
		set(xminSeconds, pin.Held.Seconds(), holder)
		set(xminTransactions, float64(pin.Transactions), holder)
	}
}

// holders are the kinds of what can pin dead rows.
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
