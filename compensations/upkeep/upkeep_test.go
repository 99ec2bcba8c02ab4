package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

const day = 24 * time.Hour

var retention = Retention{MaxRun: 95 * day, Tools: map[string]time.Duration{"noop/x": 90 * day, "noop/long": 900 * day, "noop/noop": 90 * day}}

// outbox is a real outbox, in which the tests run River's jobs.
type outbox struct {
	t       *testing.T
	db      *pgxpool.Pool
	metrics *prometheus.Registry
	log     *drainertest.Log
}

func newOutbox(t *testing.T) *outbox {
	t.Helper()
	db := drainertest.Connect(t, drainertest.Database(t))
	return &outbox{t: t, db: db, metrics: prometheus.NewRegistry(), log: &drainertest.Log{}}
}

// settled commits intents of one run, steps from to to-1, that were enqueued 100 days ago and ended 99 days ago.
func (o *outbox) settled(tool string, from, to int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		SELECT 'canary-run', n::text, $1, 'scope', '{}', now() - interval '100 days' FROM generate_series($2::int, $3::int - 1) n`, tool, from, to)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, finished_at, outcome, status)
		SELECT intent_id, 1, 'w', now() - interval '99 days', 'completed', 'completed' FROM outbox.queue`)
	o.exec(`DELETE FROM outbox.queue`)
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	drainertest.Exec(o.t, o.db, sql, args...)
}

func (o *outbox) count(sql string) int {
	o.t.Helper()
	return drainertest.Value[int](o.t, o.db, sql)
}

func (o *outbox) counted(metric string) float64 {
	o.t.Helper()
	families, err := o.metrics.Gather()
	if err != nil {
		o.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == metric {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	o.t.Fatalf("there is no metric %s", metric)
	return 0
}

func (o *outbox) upkeep() *Upkeep {
	o.t.Helper()
	part, err := New(o.db, retention, slog.New(slog.NewJSONHandler(o.log, nil)), o.metrics)
	if err != nil {
		o.t.Fatal(err)
	}
	return part
}

func (o *outbox) run(part *Upkeep) {
	o.t.Helper()
	workers := river.NewWorkers()
	part.Register(workers)
	client, err := river.NewClient[pgx.Tx](riverpgxv5.New(o.db), &river.Config{
		Schema: "outbox", Workers: workers, PeriodicJobs: part.Periodic(),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2, FetchPollInterval: 50 * time.Millisecond, FetchCooldown: 10 * time.Millisecond}},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		o.t.Fatal(err)
	}
	ended, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed)
	defer cancel()
	if err := client.Start(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	select {
	case event := <-ended:
		if event.Kind != river.EventKindJobCompleted {
			o.t.Errorf("the job ended as %s: %v", event.Kind, event.Job.Errors)
		}
	case <-time.After(drainertest.Patience):
		o.t.Error("the job never ended")
	}
	if err := client.Stop(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
}

// prune executes a slice as a job with that metadata would.
func prune(t *testing.T, part *Upkeep, metadata string) error {
	t.Helper()
	job := &river.Job[pruneArgs]{JobRow: &rivertype.JobRow{Metadata: []byte(metadata)}}
	return (&pruneWorker{upkeep: part}).Work(t.Context(), job)
}

func TestTheLeaderPrunesSoonAfterItsStartUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("noop/x", 0, 2500)
	o.settled("noop/long", 2500, 2510)
	o.run(o.upkeep())

	if left, kept := o.count(`SELECT count(*) FROM outbox.intent`), o.count(`SELECT count(*) FROM outbox.intent WHERE tool_name = 'noop/long'`); left != 10 || kept != 10 {
		t.Errorf("%d intents are left, %d of them of the tool that is kept for long; want its 10", left, kept)
	}
	drainertest.AssertInvariant(t, o.db)
	if counted := o.counted("drainer_pruned_total"); counted != 2500 {
		t.Errorf("%v were counted, want 2500", counted)
	}
	if text := o.log.String(); !strings.Contains(text, `"intents":2500`) || strings.Contains(text, "canary") {
		t.Errorf("the log says %s", text)
	}
}

// If every slice started over, no slice would get past the intents that are kept.
func TestASliceGoesOnWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("noop/long", 0, 20)
	o.settled("noop/x", 20, 40)
	part := o.upkeep()
	part.pace = pace{looks: 3, slice: time.Nanosecond}
	o.run(part)
	if left := o.count(`SELECT count(*) FROM outbox.intent`); left != 20 {
		t.Errorf("%d intents are left, want the 20 that are kept for long", left)
	}
	if jobs := o.count(`SELECT count(*) FROM outbox.river_job WHERE kind = 'prune' AND (metadata->>'snoozes')::int >= 12`); jobs != 1 {
		t.Error("it was not one job in many slices")
	}
}

func TestWhatNoFileNamesIsKept(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("another/tool", 0, 20)
	o.settled("noop", 20, 40) // the tool noop/noop
	o.run(o.upkeep())
	if left, kept := o.count(`SELECT count(*) FROM outbox.intent`), o.count(`SELECT count(*) FROM outbox.intent WHERE tool_name = 'another/tool'`); left != 20 || kept != 20 {
		t.Errorf("%d intents are left, %d of them of a tool that another process may know; want its 20", left, kept)
	}
}

func TestAReloadedRetentionCounts(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("noop/long", 0, 20)
	part := o.upkeep()
	if _, err := part.Prepare(Retention{MaxRun: day, Tools: map[string]time.Duration{"noop/long": time.Minute}}); !errors.Is(err, ErrRetention) {
		t.Errorf("got %v, want %v", err, ErrRetention)
	}
	use, err := part.Prepare(Retention{MaxRun: 95 * day, Tools: map[string]time.Duration{"noop/long": 90 * day}})
	if err != nil {
		t.Fatal(err)
	}
	use()
	o.run(part)
	if left := o.count(`SELECT count(*) FROM outbox.intent`); left != 0 {
		t.Errorf("%d intents are left, want none", left)
	}
}

func TestARetentionThatForgetsAtOnceIsRefused(t *testing.T) {
	t.Parallel()
	for _, short := range []Retention{
		{MaxRun: day, Tools: map[string]time.Duration{"noop/x": time.Minute}}, {MaxRun: time.Minute},
	} {
		if _, err := New(nil, short, slog.Default(), prometheus.NewRegistry()); !errors.Is(err, ErrRetention) {
			t.Errorf("got %v, want %v", err, ErrRetention)
		}
	}
}

func TestADaemonSaysWhereTheOwnersRetentionIsLonger(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.setting VALUES ('retention_floor', '120 days'), ('retention_floor/noop/noop', '30 days'), ('retention_floor/noop', '30 days')`)
	o.settled("noop/x", 0, 20)
	part := o.upkeep()
	o.run(part)
	o.run(part)
	if left := o.count(`SELECT count(*) FROM outbox.intent`); left != 20 {
		t.Errorf("%d intents are left, want all 20", left)
	}
	text := o.log.String()
	if n := strings.Count(text, "the schema's owner says so"); n != 1 || !strings.Contains(text, `"tools":1,"such_as":"noop/x","at_least_seconds":10368000`) {
		t.Errorf("it was said %d times, want once: %s", n, text)
	}
}

func TestAPruneThatFailsSaysWhatFailed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.settled("noop/x", 0, 20)
	part := o.upkeep()
	part.pace = pace{looks: 3, slice: time.Nanosecond}
	for want, metadata := range map[string]string{
		"read where the prune was: ": `{"output": "nowhere"}`,
		"note where the prune is: ":  `{}`, // only a job of River's can note it
	} {
		if err := prune(t, part, metadata); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("with %s it says %v, want %q", metadata, err, want)
		}
	}
	o.exec(`ALTER FUNCTION outbox.prune RENAME TO away`)
	before := o.count(`SELECT count(*) FROM outbox.intent`)
	if err := prune(t, part, `{}`); err == nil || !strings.HasPrefix(err.Error(), "prune: ") {
		t.Errorf("it says %v, want that it could not prune", err)
	}
	if left := o.count(`SELECT count(*) FROM outbox.intent`); left != before {
		t.Errorf("%d intents are left of %d", left, before)
	}
}

func TestARestEndsWithItsJob(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	began := time.Now()
	rest(over, time.Hour)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it rested for %s", took)
	}
}
