package jobs_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/drainertest"
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
func (s *stubborn) Periodic() []*river.PeriodicJob  { return nil }

func (s *stubborn) Work(ctx context.Context, _ *river.Job[stubbornArgs]) error {
	close(s.began)
	<-ctx.Done()
	close(s.ended)
	return ctx.Err()
}

func TestAJobThatDoesNotEndIsCutOffAtTheShutdown(t *testing.T) {
	t.Parallel()
	pool, err := jobs.OpenPool(t.Context(), drainertest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	part := &stubborn{began: make(chan struct{}), ended: make(chan struct{})}
	runner, err := jobs.New(pool, silent, part)
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
	case <-time.After(30 * time.Second):
		t.Fatal("it never ended")
	}
	<-part.ended
}

func TestWhatCannotRunSaysWhy(t *testing.T) {
	t.Parallel()
	if _, err := jobs.OpenPool(t.Context(), "postgres://ann:canary@h:no-port/db"); err == nil || !strings.HasPrefix(err.Error(), "database URL: ") || strings.Contains(err.Error(), "canary") {
		t.Errorf("a URL without a port: %v", err)
	}
	if _, err := jobs.New(nil, silent); err == nil || !strings.HasPrefix(err.Error(), "set up River: ") {
		t.Errorf("no parts: %v", err)
	}
}
