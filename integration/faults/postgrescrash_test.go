package faults_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// everyClass is a tool of each class, and one whose run can go back.
var everyClass = []string{world.Keyed, world.Set, world.Once, world.Asked, world.Order}

// Agents and daemons are at work each time.
func TestACrashOfPostgresLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		number int
		crash  func(t *testing.T, server *throwaway.Server)
	}{
		"the server stops at once": {16, func(t *testing.T, server *throwaway.Server) { cluster.Restart(t, server) }},
		"a backend is killed":      {17, killABackend},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := cluster.Start(t)
			w := world.At(t, server.URL, nil)
			w.Start(asDaemon)
			w.Start(asDaemon)
			stop := w.Agents(everyClass...)
			const crashes = 3
			for range crashes {
				w.AwaitMoreEffects(20)
				test.crash(t, server)
			}
			w.AwaitMoreEffects(20)
			stop()
			w.AwaitRest()
			fault.Injected(t, test.number, crashes)
			w.Check()
		})
	}
}

// asDaemon is the name under which Postgres knows a daemon's sessions.
const asDaemon = "PGAPPNAME=daemon"

// killABackend takes one that serves a daemon. Postgres cannot know what it did
// to the memory that they share, so all of them end, and it recovers.
func killABackend(t *testing.T, server *throwaway.Server) {
	t.Helper()
	started := cluster.Ask[time.Time](t, server, `SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer'`)
	pid := cluster.Ask[int](t, server, `SELECT pid FROM pg_stat_activity WHERE application_name = 'daemon' ORDER BY state_change DESC LIMIT 1`)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	drainertest.Eventually(t, "Postgres has recovered", func() bool {
		conn, err := pgx.Connect(t.Context(), server.URL)
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		var recovered bool
		err = conn.QueryRow(t.Context(), `SELECT backend_start > $1 FROM pg_stat_activity WHERE backend_type = 'checkpointer'`, started).Scan(&recovered)
		return err == nil && recovered
	})
}
