package faults_test

import (
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

const listeners = `FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN outbox'`

// Each listener is killed as soon as it is there, and what it would have heard
// is lost besides.
func TestRowsAreFoundWithoutAListener(t *testing.T) {
	t.Parallel()
	const kills = 2
	w := world.New(t, nil)
	line := pgproxy.New(t, w.URL)
	line.Muted.Store(true)
	w.Start("DATABASE_URL=" + line.Behind(t, w.URL))
	for range kills {
		drainertest.Eventually(t, "the daemon listens", func() bool { return w.Count(`SELECT count(*) `+listeners) > 0 })
		w.Exec(`SELECT pg_terminate_backend(pid) ` + listeners)
		for _, tool := range everyClass {
			w.Enqueue(tool, 2)
		}
		w.AwaitRest()
	}
	fault.Injected(t, 22, kills)
	w.Check()
}
