package jobs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
)

// pollingDriver is River's driver without LISTEN and NOTIFY. Postgres has no privilege
// for these: any login that may CONNECT could make River pause its queues or give up
// its leadership. Without them, River wakes its own workers for jobs that this
// process inserts, and polls for all others.
type pollingDriver struct {
	*riverpgxv5.Driver
	pool *pgxpool.Pool
}

func (pollingDriver) SupportsListener() bool     { return false }
func (pollingDriver) SupportsListenNotify() bool { return false }

// dueByDatabase makes a job that should run at once due by the database's clock. River would
// take the clock of the inserting process. If that clock is ahead, no client would work
// the job before the database's clock has caught up.
type dueByDatabase struct{ river.MiddlewareDefaults }

var _ rivertype.JobInsertMiddleware = (*dueByDatabase)(nil)

func (*dueByDatabase) InsertMany(ctx context.Context, inserts []*rivertype.JobInsertParams,
	insert func(context.Context) ([]*rivertype.JobInsertResult, error),
) ([]*rivertype.JobInsertResult, error) {
	for _, job := range inserts {
		if job.State == rivertype.JobStateAvailable {
			job.CreatedAt, job.ScheduledAt = &time.Time{}, &time.Time{} // River's SQL replaces the zero time by now()
		}
	}
	return insert(ctx)
}

//go:embed watch.sql
var watchSQL string

const (
	watchInterval = 10 * time.Second
	watchTimeout  = 10 * time.Second
	// late is how long jobs may wait before /readyz fails. A leader that was killed
	// is replaced within 20 s.
	late = time.Minute
	// otherKinds is the metrics' label for kinds of job that this version does not know.
	otherKinds = "other"
)

// watch checks whether jobs are worked. It reads only the tables for that, since a River that is
// paused or stuck reports nothing. It also makes jobs due that were given back by a process
// whose clock is ahead.
type watch struct {
	river.MiddlewareDefaults
	pool   *pgxpool.Pool
	kinds  map[string]bool
	oldest *prometheus.GaugeVec
	looks  map[string]prometheus.Gauge // by the kind of job
	began  time.Time
	worked atomic.Pointer[time.Time] // when this process last began a job; at first, when it started
	seen   atomic.Pointer[tableState]
}

// tableState is the state of the tables at one look.
type tableState struct {
	at        time.Time     // by this process's clock
	oldestDue time.Duration // how long the oldest due job has waited for a worker
	oldestOf  string        // the kind of that job
	pageLook  time.Duration // since the start of the last successful search for incidents to page
	sagaLook  time.Duration // since the start of the last successful pass of River over sagas
}

var _ rivertype.WorkerMiddleware = (*watch)(nil)

func newWatch(pool *pgxpool.Pool, kinds []string, registerer prometheus.Registerer) *watch {
	now := time.Now()
	w := &watch{
		pool:  pool,
		kinds: map[string]bool{otherKinds: true},
		oldest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "oldest_job_age_seconds",
			Help: "How long the oldest due job has waited for a process.",
		}, []string{"kind"}),
		looks: map[string]prometheus.Gauge{
			KindPageLook: prometheus.NewGauge(prometheus.GaugeOpts{
				Namespace: "drainer", Name: "page_look_age_seconds",
				Help: "Time since the last finished search for incidents to page began, at most since this process did.",
			}),
			KindSagaLook: prometheus.NewGauge(prometheus.GaugeOpts{
				Namespace: "drainer", Name: "saga_look_age_seconds",
				Help: "Time since the last finished pass over sagas by River began, at most since this process did.",
			}),
		},
		began: now,
	}
	for _, kind := range kinds {
		w.kinds[kind] = true
	}
	for kind := range w.kinds {
		w.oldest.WithLabelValues(kind).Set(0)
	}
	w.worked.Store(&now)
	w.seen.Store(&tableState{at: now})
	registerer.MustRegister(w.oldest, w.looks[KindPageLook], w.looks[KindSagaLook])
	return w
}

// Work records that a job began, and works it.
func (w *watch) Work(ctx context.Context, _ *rivertype.JobRow, work func(context.Context) error) error {
	now := time.Now()
	w.worked.Store(&now)
	return work(ctx)
}

// run looks every watchInterval until ctx ends. It ignores a look that failed: ready reports one that is too old.
func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		_ = w.see(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *watch) see(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	rows, _ := w.pool.Query(ctx, watchSQL, []string{KindPageLook, KindSagaLook}) // CollectRows returns the error too
	ages, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Kind    string
		Due     *float64 // seconds that the oldest job of the kind has been due
		LookAge *float64 // seconds since the last successful look began
	}])
	if err != nil {
		return fmt.Errorf("look whether jobs come round: %w", err)
	}
	now := time.Now()
	seen, oldest := tableState{at: now}, map[string]float64{}
	looks := map[string]time.Duration{KindPageLook: now.Sub(w.began), KindSagaLook: now.Sub(w.began)}
	for _, age := range ages {
		kind := age.Kind
		if !w.kinds[kind] {
			kind = otherKinds
		}
		if age.Due != nil {
			oldest[kind] = max(oldest[kind], *age.Due)
		}
		if age.LookAge != nil { // at most the age of this process: before it, perhaps none ran
			looks[age.Kind] = max(0, min(looks[age.Kind], seconds(*age.LookAge)))
		}
	}
	for kind := range w.kinds {
		w.oldest.WithLabelValues(kind).Set(oldest[kind])
		if due := seconds(oldest[kind]); due > seen.oldestDue {
			seen.oldestDue, seen.oldestOf = due, kind
		}
	}
	for kind, age := range looks {
		w.looks[kind].Set(age.Seconds())
	}
	seen.pageLook, seen.sagaLook = looks[KindPageLook], looks[KindSagaLook]
	w.seen.Store(&seen)
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

var errBlind = errors.New("it could not be seen for a minute whether jobs run: pages and compensations may wait")

// ready returns an error if pages and compensations may wait. A job that waits is no error
// if this process works other jobs.
func (w *watch) ready() error {
	seen := w.seen.Load()
	switch {
	case time.Since(seen.at) > late:
		return errBlind
	case seen.oldestDue > late && time.Since(*w.worked.Load()) > late:
		return fmt.Errorf("a job of kind %s has been due for %s, and this process works none: pages and compensations may wait; see drainer doctor",
			seen.oldestOf, seen.oldestDue.Round(time.Second))
	case seen.pageLook > late:
		return fmt.Errorf("no process has looked for incidents to page for %s; see drainer doctor", seen.pageLook.Round(time.Second))
	case seen.sagaLook > late:
		return fmt.Errorf("no pass over sagas has ended well for %s: compensations may wait; see drainer doctor", seen.sagaLook.Round(time.Second))
	}
	return nil
}
