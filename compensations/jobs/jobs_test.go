package jobs

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

var silent = slog.New(slog.DiscardHandler)

// stubborn is a part whose only job does not end by itself.
type stubborn struct {
	river.WorkerDefaults[stubbornArgs]
	began, ended chan struct{}
}

type stubbornArgs struct{}

func (stubbornArgs) Kind() string { return "stubborn" }

func (s *stubborn) Register(workers *river.Workers) { river.AddWorker(workers, s) }
func (s *stubborn) Kinds() []string                 { return []string{stubbornArgs{}.Kind()} }
func (s *stubborn) Periodic() []*river.PeriodicJob  { return nil }

func (s *stubborn) Work(ctx context.Context, _ *river.Job[stubbornArgs]) error {
	close(s.began)
	<-ctx.Done()
	close(s.ended)
	return ctx.Err()
}

func TestAJobThatDoesNotEndIsCutOffAtTheShutdown(t *testing.T) {
	t.Parallel()
	pool, err := OpenPool(t.Context(), pgpool.At(drainertest.Database(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	part := &stubborn{began: make(chan struct{}), ended: make(chan struct{})}
	runner, err := New(pool, silent, prometheus.NewRegistry(), part)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runner.client.Insert(t.Context(), stubbornArgs{}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	<-part.began
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(drainertest.Patience):
		t.Fatal("it never ended")
	}
	<-part.ended
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	t.Parallel()
	if _, err := OpenPool(t.Context(), pgpool.At("postgres://ann:canary@h:no-port/db")); err == nil || !errors.Is(err, pgpool.ErrURL) || strings.Contains(err.Error(), "canary") {
		t.Errorf("a URL without a port: %v", err)
	}
	if _, err := New(nil, silent, prometheus.NewRegistry()); err == nil || !strings.HasPrefix(err.Error(), "set up River: ") {
		t.Errorf("no parts: %v", err)
	}
}

// tick is a part whose only job runs at the start, and then closes ran.
type tick struct {
	river.WorkerDefaults[tickArgs]
	ran chan struct{}
}

type tickArgs struct{}

func (tickArgs) Kind() string { return "tick" }

func (t *tick) Register(workers *river.Workers) { river.AddWorker(workers, t) }

func (t *tick) Kinds() []string { return []string{tickArgs{}.Kind()} }

func (t *tick) Periodic() []*river.PeriodicJob {
	once := func() (river.JobArgs, *river.InsertOpts) { return tickArgs{}, nil }
	return []*river.PeriodicJob{river.NewPeriodicJob(river.NeverSchedule(), once, &river.PeriodicJobOpts{RunOnStart: true})}
}

func (t *tick) Work(context.Context, *river.Job[tickArgs]) error {
	close(t.ran)
	return nil
}

// lines receives each logged line, and drops lines that do not fit.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// away returns a pool whose database cannot be reached until the returned proxy is brought up.
func away(t *testing.T) (*pgxpool.Pool, *pgproxy.Proxy) {
	t.Helper()
	url := drainertest.Database(t)
	line := pgproxy.New(t, url)
	line.TakeDown()
	pool, err := OpenPool(t.Context(), pgpool.At(line.Behind(t, url)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, line
}

func TestADatabaseThatIsAwayAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	pool, line := away(t)
	logged, part := make(lines, 100), &tick{ran: make(chan struct{})}
	runner, err := New(pool, slog.New(slog.NewTextHandler(logged, nil)), prometheus.NewRegistry(), part)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	for !strings.Contains(<-logged, "cannot start jobs yet") {
		continue
	}
	line.BringUp()
	select {
	case <-part.ran:
	case err := <-ended:
		t.Fatalf("it ended: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAShutdownDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	pool, _ := away(t)
	runner, err := New(pool, silent, prometheus.NewRegistry(), &tick{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := runner.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestJobsThatStandStillShow(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	metrics := prometheus.NewRegistry()
	w := newWatch(pool, []string{"saga_look", "page_send"}, metrics)
	w.began = w.began.Add(-3 * time.Hour)
	long := w.began
	w.worked.Store(&long)
	see := func() {
		t.Helper()
		if err := w.see(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	value := func(name, kind string) float64 {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == name && (kind == "" || metric.GetLabel()[0].GetValue() == kind) {
					return metric.GetGauge().GetValue()
				}
			}
		}
		t.Fatalf("there is no %s of kind %q", name, kind)
		return 0
	}
	assert := func(kind string, due, look time.Duration, says string) {
		t.Helper()
		near := func(got float64, want time.Duration) bool { return got >= want.Seconds() && got < want.Seconds()+60 }
		if got := value("drainer_oldest_job_age_seconds", kind); !near(got, due) {
			t.Errorf("the oldest job of kind %s has been due for %.0f s, want %s", kind, got, due)
		}
		if got := value("drainer_page_look_age_seconds", ""); !near(got, look) {
			t.Errorf("the last look was %.0f s ago, want %s", got, look)
		}
		if err := w.ready(); (err == nil) != (says == "") || (err != nil && !strings.Contains(err.Error(), says)) {
			t.Errorf("it is ready but for %v, want %q", err, says)
		}
	}
	const job = `INSERT INTO outbox.river_job (kind, args, max_attempts, state, scheduled_at, attempted_at, finalized_at) VALUES `

	see() // an outbox without any job
	assert("saga_look", 0, 3*time.Hour, "no process has looked for incidents to page for 3h0m")

	drainertest.Exec(t, pool, job+`('page_look', '{}', 1, 'completed', now(), now() - interval '5 s', now())`)
	see()
	assert("saga_look", 0, 5*time.Second, "no pass over sagas has ended well for 3h0m")
	if age := value("drainer_saga_look_age_seconds", ""); age < 3*time.Hour.Seconds() {
		t.Errorf("the last pass ended well %.0f s ago, want as long ago as the process began", age)
	}

	drainertest.Exec(t, pool, job+`('saga_look', '{}', 1, 'completed', now(), now() - interval '5 s', now())`)
	see()
	assert("saga_look", 0, 5*time.Second, "")

	drainertest.Exec(t, pool, job+`('saga_look', '{}', 1, 'available', now() - interval '2 hours', NULL, NULL),
		('saga_look', '{}', 1, 'running', now() - interval '4 hours', now(), NULL),
		('prune', '{}', 1, 'available', now() - interval '1 hour', NULL, NULL)`)
	see()
	assert(otherKinds, time.Hour, 5*time.Second, "a job of kind saga")
	assert("saga_look", 2*time.Hour, 5*time.Second, "a job of kind saga_look has been due for 2h0m")

	// A client that works other jobs is busy, so it has not stopped.
	if err := w.Work(t.Context(), &rivertype.JobRow{}, func(ctx context.Context) error { return ctx.Err() }); err != nil {
		t.Fatal(err)
	}
	assert("saga_look", 2*time.Hour, 5*time.Second, "")

	// A watch that cannot read the jobs must not report that all is well.
	pool.Close()
	if err := w.see(t.Context()); err == nil {
		t.Error("it looks into a closed pool")
	}
	seen := *w.seen.Load()
	seen.at = seen.at.Add(-2 * time.Minute)
	w.seen.Store(&seen)
	assert("saga_look", 2*time.Hour, 5*time.Second, "it could not be seen")
}

// The clock of the process that gave the jobs back is ahead, or the clock of the leader is behind.
func TestAJobThatOneProcessesClockHidesIsMadeDue(t *testing.T) {
	t.Parallel()
	pool := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, pool, `INSERT INTO outbox.river_job (kind, args, max_attempts, attempt, state, scheduled_at) VALUES
		('prune', '{}', 1, 0, 'available', now() + interval '1 hour'),
		('prune', '{}', 2, 1, 'retryable', now() + interval '1 hour'),
		('prune', '{}', 2, 1, 'scheduled', now() + interval '1 hour'),
		('prune', '{}', 2, 1, 'retryable', now() - interval '1 minute'),
		('prune', '{}', 2, 1, 'retryable', now() - interval '1 second'),
		('prune', '{}', 2, 1, 'retryable', now() + interval '1 minute')`)
	w := newWatch(pool, nil, prometheus.NewRegistry())
	if err := w.see(t.Context()); err != nil {
		t.Fatal(err)
	}
	if due := drainertest.Value[int](t, pool, `SELECT count(*) FROM outbox.river_job WHERE state = 'available' AND scheduled_at <= now()`); due != 4 {
		t.Errorf("%d jobs are due, want three that lie too far ahead, and one without a schedule", due)
	}
}

func TestRiverIsHeardFromWarningsUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		derive func(*slog.Logger) *slog.Logger
		from   slog.Level
		want   string
	}{
		"plain":                       {func(l *slog.Logger) *slog.Logger { return l }, slog.LevelInfo, "warn error"},
		"with attributes and a group": {func(l *slog.Logger) *slog.Logger { return l.With("queue", "undo").WithGroup("job") }, slog.LevelInfo, "warn error"},
		"where errors alone are kept": {func(l *slog.Logger) *slog.Logger { return l }, slog.LevelError, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var written bytes.Buffer
			messagesOnly := func(_ []string, attr slog.Attr) slog.Attr {
				if attr.Key == slog.MessageKey {
					return attr
				}
				return slog.Attr{}
			}
			handler := slog.NewTextHandler(&written, &slog.HandlerOptions{Level: test.from, ReplaceAttr: messagesOnly})
			log := test.derive(slog.New(warningsOnly{handler}))
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			log.Error("error")
			if got := strings.Join(strings.Fields(strings.ReplaceAll(written.String(), "msg=", "")), " "); got != test.want {
				t.Errorf("heard %q, want %q", got, test.want)
			}
		})
	}
}
