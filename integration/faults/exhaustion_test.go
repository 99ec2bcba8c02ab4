package faults_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/integration/world"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// Somebody's lock keeps the lanes' turns and recovery waiting, for longer than a
// lease.
func TestHeartbeatsNeedNoneOfTheConnectionsThatAreTaken(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	daemon := w.Program.Start(patientConfig(t, w))
	daemon.WaitFor(`"msg":"joined"`)
	locker := begin(t, w, `LOCK outbox.claim`)
	for _, tool := range everyClass {
		w.Enqueue(tool, 10)
	}
	waiting := 0
	drainertest.Eventually(t, "turns wait, and so does recovery", func() bool {
		waiting = w.Count(blocked)
		return waiting >= 4
	})
	since := drainertest.Value[time.Time](t, w.DB, `SELECT clock_timestamp()`)
	drainertest.Eventually(t, "the worker has outlived its lease by heartbeats", func() bool {
		return drainertest.Value[time.Time](t, w.DB, `SELECT beat_at FROM outbox.worker`).Sub(since) > patientLease
	})
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.AwaitRest()
	fault.Injected(t, 23, waiting)
	w.Check()
	if log := daemon.Terminate(); strings.Contains(log, "lease lost") {
		t.Error("it lost its lease")
	}
}

// patientLease is one that a slow machine does not lose.
const patientLease = 6 * time.Second

func patientConfig(t *testing.T, w *world.World) string {
	t.Helper()
	text, err := os.ReadFile(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	patient := strings.Replace(string(text), "lease: 1s", "lease: "+patientLease.String(), 1)
	return program.WriteConfig(t, patient)
}

// read is the only value of a query.
// Others take every connection that the server has, and the daemon has none left.
func TestADaemonThatMayNotConnectWaitsItsTurn(t *testing.T) {
	t.Parallel()
	server := cluster.Start(t, throwaway.WithSettings(map[string]string{"max_connections": "40"}))
	w := world.At(t, server.URL, nil)
	daemon := w.Start(asDaemon)
	for _, tool := range everyClass {
		w.Enqueue(tool, 10)
	}
	w.AwaitRest()

	crowd := takeItsConnections(t, server)
	for range 10 {
		daemon.WaitFor("too many clients")
	}
	for _, tool := range everyClass {
		w.Enqueue(tool, 10)
	}
	for _, other := range crowd {
		other.Close(t.Context())
	}
	w.AwaitRest()
	log := daemon.Terminate()
	refused := strings.Count(log, "too many clients")
	fault.Injected(t, 24, refused)
	w.Check()
	if complaints := strings.Count(log, "turn failed") + strings.Count(log, "cannot join yet"); complaints > 20 {
		t.Errorf("%d complaints of the lanes in a few seconds: a tight loop", complaints)
	}
}

// takeItsConnections fills the server until no session of a daemon is left.
func takeItsConnections(t *testing.T, server *throwaway.Server) (crowd []*pgx.Conn) {
	t.Helper()
	admin := cluster.Connect(t, server)
	crowd = append(crowd, admin)
	drainertest.Eventually(t, "others have all connections", func() bool {
		for {
			other, err := pgx.Connect(t.Context(), server.URL)
			if err != nil {
				break
			}
			crowd = append(crowd, other)
		}
		var daemons int
		err := admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'daemon'`).Scan(&daemons)
		return err == nil && daemons == 0
	})
	return crowd
}
