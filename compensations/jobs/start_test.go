package jobs_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
)

// tick is a part whose only job, at the start, says that it ran.
type tick struct {
	river.WorkerDefaults[tickArgs]
	ran chan struct{}
}

type tickArgs struct{}

func (tickArgs) Kind() string { return "tick" }

func (t *tick) Register(workers *river.Workers) { river.AddWorker(workers, t) }

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
	pool, err := jobs.OpenPool(t.Context(), line.Behind(t, url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	logged, part := make(lines, 100), &tick{ran: make(chan struct{})}
	runner, err := jobs.New(pool, slog.New(slog.NewTextHandler(logged, nil)), part)
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
	pool, err := jobs.OpenPool(t.Context(), line.Behind(t, url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	runner, err := jobs.New(pool, silent, &tick{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := runner.Run(ctx); err != nil {
		t.Error(err)
	}
}
