package nemesis_test

import (
	"context"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// cluster is a Postgres of its own, as durable as Postgres is by default, that
// may crash.
type cluster struct{ server *throwaway.Server }

func startCluster(t testing.TB) cluster {
	t.Helper()
	server, err := throwaway.Start(context.Background(), throwaway.WithSettings(map[string]string{"max_connections": "200"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if _, err := migrations.Up(context.Background(), server.URL); err != nil {
		t.Fatal(err)
	}
	return cluster{server}
}

// crash takes the server away for that long, whatever becomes of ctx meanwhile.
func (c cluster) crash(ctx context.Context, downFor time.Duration) error {
	if err := c.server.Kill(); err != nil {
		return err
	}
	linger(ctx, downFor)
	return c.server.Restart(context.WithoutCancel(ctx))
}

// linger waits, but not beyond the end of ctx.
func linger(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
