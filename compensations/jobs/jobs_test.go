package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
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
	pool, err := jobs.OpenPool(t.Context(), pgpool.At(drainertest.Database(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	part := &stubborn{began: make(chan struct{}), ended: make(chan struct{})}
	runner, err := jobs.New(pool, silent, prometheus.NewRegistry(), part)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runner.Client().Insert(t.Context(), stubbornArgs{}, nil); err != nil {
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
	if _, err := jobs.OpenPool(t.Context(), pgpool.At("postgres://ann:canary@h:no-port/db")); err == nil || !errors.Is(err, pgpool.ErrURL) || strings.Contains(err.Error(), "canary") {
		t.Errorf("a URL without a port: %v", err)
	}
	if _, err := jobs.New(nil, silent, prometheus.NewRegistry()); err == nil || !strings.HasPrefix(err.Error(), "set up River: ") {
		t.Errorf("no parts: %v", err)
	}
}

// tick is a part whose only job, at the start, says that it ran.
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

// lines passes on what is logged.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

func TestADatabaseThatIsAwayAtTheStartIsWaitedFor(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	line := pgproxy.New(t, url)
	line.TakeDown()
	pool, err := jobs.OpenPool(t.Context(), pgpool.At(line.Behind(t, url)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	logged, part := make(lines, 100), &tick{ran: make(chan struct{})}
	runner, err := jobs.New(pool, slog.New(slog.NewTextHandler(logged, nil)), prometheus.NewRegistry(), part)
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
	url := drainertest.Database(t)
	line := pgproxy.New(t, url)
	line.TakeDown()
	pool, err := jobs.OpenPool(t.Context(), pgpool.At(line.Behind(t, url)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	runner, err := jobs.New(pool, silent, prometheus.NewRegistry(), &tick{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := runner.Run(ctx); err != nil {
		t.Error(err)
	}
}
