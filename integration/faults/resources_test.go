package faults_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/internal/throwaway"
)

// Another session's lock blocks the batches of the lanes and the recovery for longer than a lease.
func TestHeartbeatsNeedNoneOfTheConnectionsThatAreTaken(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(withPatientLease)
	daemon := rig.Start()
	daemon.WaitFor(`"msg":"joined"`)
	locker := begin(t, rig, `LOCK outbox.claim`)
	for _, tool := range everyClass {
		rig.Enqueue(tool, 10)
	}
	waiting := 0
	drainertest.Eventually(t, "turns wait, and so does recovery", func() bool {
		waiting = rig.Count(blocked)
		return waiting >= 4
	})
	since := drainertest.Value[time.Time](t, rig.DB, `SELECT clock_timestamp()`)
	drainertest.Eventually(t, "the worker has outlived its lease by heartbeats", func() bool {
		return drainertest.Value[time.Time](t, rig.DB, `SELECT beat_at FROM outbox.worker`).Sub(since) > patientLease
	})
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.AwaitRest()
	fault.Injected(t, 23, waiting)
	rig.Check()
	if log := daemon.Terminate(); strings.Contains(log, "lease lost") {
		t.Error("it lost its lease")
	}
}

// Lanes, sagas, jobs and the census work at the same time.
func TestADaemonHoldsNoMoreConnectionsThanTheDoctorCountsWith(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(steady)
	rig.Start("DATABASE_URL=" + rig.URL + "&application_name=counted")
	stop := rig.Agents(everyClass...)
	most := 0
	for round := range 5 {
		for range 20 {
			run := rig.NewRun()
			rig.Step(run, 1, harness.Order)
			rig.Step(run, 2, harness.Declined)
		}
		drainertest.Eventually(t, "the runs are rolled back", func() bool {
			most = max(most, rig.Count(`SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'`))
			return rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`) >= 20*(round+1)
		})
	}
	stop()
	t.Logf("%d connections", most)
	if most > doctor.DaemonConnections || most < doctor.DaemonConnections/2 {
		t.Errorf("it holds %d connections, and the doctor counts with %d", most, doctor.DaemonConnections)
	}
}

// patientLease is a lease that a slow machine does not lose.
const patientLease = 6 * time.Second

func withPatientLease(config string) string {
	return strings.Replace(config, "lease: 1s", "lease: "+patientLease.String(), 1)
}

// Other clients take every connection of the server, so the daemon has none.
func TestADaemonThatMayNotConnectWaitsItsTurn(t *testing.T) {
	t.Parallel()
	server := cluster.Start(t, throwaway.WithSettings(map[string]string{"max_connections": "40"}))
	rig := harness.At(t, server.URL, nil)
	daemon := rig.Start(asDaemon)
	for _, tool := range everyClass {
		rig.Enqueue(tool, 10)
	}
	rig.AwaitRest()

	began := time.Now()
	crowd := takeItsConnections(t, server)
	daemon.WaitFor("too many clients")
	for _, tool := range everyClass {
		rig.Enqueue(tool, 10)
	}
	for _, other := range crowd {
		other.Close(t.Context())
	}
	rig.AwaitRest()
	seconds := time.Since(began).Seconds()
	log := daemon.Terminate()
	refused := strings.Count(log, "too many clients")
	fault.Injected(t, 24, refused)
	rig.Check()
	if complaints := strings.Count(log, "batch failed") + strings.Count(log, "cannot join yet"); complaints > 20+10*int(seconds) {
		t.Errorf("%d complaints of the lanes in %.0f s: a tight loop", complaints, seconds)
	}
}

// takeItsConnections takes all connections of the server, until the daemon has no session left.
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

// More idle clients connect to the metrics port than the daemon accepts at once.
func TestIdleClientsOfTheMetricsPortStopNeitherDeliveriesNorScrapes(t *testing.T) {
	t.Parallel()
	const clients = 300
	for name, begun := range map[string]string{"nothing was asked": "", "half a request": "GET /metrics HTTP/1.1\r\nHost: a"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			daemon := rig.Start()
			before := openFiles(t, daemon.PID())
			crowd(t, daemon.Base, clients, begun)
			if got := daemon.Get("/livez"); got != "ok\n" { // after all idle clients
				t.Errorf("/livez: %q", got)
			}
			taken := openFiles(t, daemon.PID()) - before
			fault.Injected(t, 71, clients)
			if taken > 128 {
				t.Errorf("%d clients hold %d files of the daemon", clients, taken)
			}
			rig.Enqueue(harness.Keyed, 32)
			rig.AwaitRest()
			if !strings.Contains(daemon.Get("/metrics"), "drainer_build_info") {
				t.Error("a scrape brings nothing")
			}
			rig.Check()
		})
	}
}

// crowd connects clients that send the beginning of a request, and keeps them open.
func crowd(t *testing.T, base string, clients int, begun string) {
	t.Helper()
	for range clients {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, begun); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdleClientsOfADaemonsConsoleStopNeitherDeliveriesNorItsPages(t *testing.T) {
	t.Parallel()
	const clients = 300
	rig := harness.New(t, nil)
	rig.Reconfigure(func(config string) string {
		return strings.Replace(config, "providers:\n", "console: {listen: '127.0.0.1:0'}\nproviders:\n", 1)
	})
	daemon := rig.Start()
	before := openFiles(t, daemon.PID())
	// A stranger may read the style sheet. The connection then waits for another request.
	crowd(t, daemon.Console(), clients, "GET /static/console.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
	page, err := http.Get(daemon.Console() + "/runs") // after all idle clients
	if err != nil {
		t.Fatal(err)
	}
	page.Body.Close()
	if page.StatusCode != http.StatusOK {
		t.Errorf("the runs answer %d", page.StatusCode)
	}
	if taken := openFiles(t, daemon.PID()) - before; taken > 128 {
		t.Errorf("%d clients hold %d files of the daemon", clients, taken)
	}
	rig.Enqueue(harness.Keyed, 32)
	rig.AwaitRest()
	rig.Check()
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Skipf("the files of a process cannot be seen here: %v", err)
	}
	return len(files)
}

const deadRows = 100_000

// A client's snapshot keeps the dead queue rows of all claims since then. If each claim read all of them, each claim
// would be slower than the one before.
func TestClaimsPassByTheDeadRowsThatASnapshotHolds(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(steady)
	rig.Reconfigure(onceAlone) // so that only the lane with the dead rows polls
	holder, err := rig.DB.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	drainertest.Exec(t, holder, `SELECT count(*) FROM outbox.queue`)
	// The table is now as if this many rows had been claimed.
	if _, err := rig.DB.Exec(t.Context(), `
		BEGIN;
		SET LOCAL session_replication_role = replica;
		INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id)
		SELECT 'once', now() - interval '1 hour' + n * interval '1 millisecond', -n, 'run' FROM generate_series(1, 100000) n;
		DELETE FROM outbox.queue;
		COMMIT`); err != nil {
		t.Fatal(err)
	}
	const looked = `SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelid = 'outbox.queue_pkey'::regclass`
	const read = `SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelid = 'outbox.queue_pkey'::regclass`
	looks, entries := rig.Count(looked), rig.Count(read)
	daemon := rig.Start()
	stop := rig.Agents(harness.Once, harness.Once, harness.Once, harness.Once)
	rig.AwaitMoreEffects(300)
	stop()
	rig.AwaitRest()
	drainertest.Eventually(t, "the dead rows are still there", func() bool {
		return rig.Count(`SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.queue'::regclass`) >= deadRows
	})
	fault.Injected(t, 27, deadRows)
	rig.Check()

	daemon.Terminate() // its sessions report their reads when they end
	drainertest.Eventually(t, "the sessions have reported their first look of all", func() bool { return rig.Count(read) >= entries+deadRows })
	looks, entries = rig.Count(looked)-looks, rig.Count(read)-entries
	t.Logf("%d looks read %d entries of the queue's index", looks, entries)
	if entries/looks > deadRows/2 {
		t.Errorf("a look reads %d entries, beside %d dead ones", entries/looks, deadRows)
	}
}

// Two daemons share the server connections of one pooler, with sagas under way.
func TestDaemonsBehindAPoolerInTransactionModeDrain(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(steady)
	behind := "DATABASE_URL=" + drainertest.PgBouncer(t, rig.URL+"&default_query_exec_mode=exec", "transaction", 10)
	rig.Start(behind)
	rig.Start(behind)
	stop := rig.Agents(everyClass...)
	for range 5 {
		run := rig.NewRun()
		rig.Step(run, 1, harness.Order)
		rig.Step(run, 2, harness.Declined)
	}
	rig.AwaitMoreEffects(100)
	stop()
	rig.AwaitRest()
	fault.Injected(t, 26, rig.Count(`SELECT count(*) FROM outbox.attempt`))
	rig.Check()
	if back := rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`); back != 5 {
		t.Errorf("%d of 5 runs were rolled back", back)
	}
}

// The newest migration is applied while daemons and agents work, and while one
// agent's transaction stays open on a table that it has to change.
func TestAMigrationUnderLoadLetsAgentsPass(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(steady)
	rig.Start()
	rig.Start()
	undo := undoNewest(t)
	drainertest.Eventually(t, "the newest migration is undone", func() bool {
		_, err := rig.DB.Exec(t.Context(), undo) // it may fail because of a daemon's locks
		return err == nil
	})
	rig.Program.Run(5, "run", "--config", rig.Config) // the program needs this migration, and refuses to start
	stop := rig.Agents(everyClass...)
	rig.AwaitMoreEffects(20)

	slow := begin(t, rig, `LOCK outbox.queue, outbox.incident IN ROW EXCLUSIVE MODE`) // as an enqueue does
	migration := rig.Program.Command("migrate", "up")
	var said strings.Builder
	migration.Stderr = &said
	if err := migration.Start(); err != nil {
		t.Fatal(err)
	}
	const waits = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ 'CREATE INDEX'`
	drainertest.Eventually(t, "the migration waits, and others behind it", func() bool { return rig.Count(waits) > 0 && rig.Count(blocked) > 1 })
	drainertest.Eventually(t, "it gives way", func() bool { return rig.Count(waits) == 0 })
	rig.AwaitMoreEffects(5)
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := migration.Wait(); err != nil && !strings.Contains(said.String(), "gave up after 5 tries") {
		t.Fatalf("the migration failed: %v\n%s", err, said.String())
	}
	rig.Program.Run(0, "migrate", "up") // on a slow machine the transaction may have outlasted all tries
	rig.AwaitMoreEffects(20)
	stop()
	rig.AwaitRest()
	fault.Injected(t, 62, 1)
	rig.Check()
	rig.Start() // it needs the newest schema
}

// undoNewest returns the SQL of the newest migration's down part.
func undoNewest(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../migrations/sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	text, err := os.ReadFile(slices.Max(files))
	if err != nil {
		t.Fatal(err)
	}
	_, down, _ := strings.Cut(string(text), "-- +goose Down")
	return down + `DELETE FROM outbox.goose_db_version WHERE version_id = (SELECT max(version_id) FROM outbox.goose_db_version)`
}

// peakMemory returns the peak resident memory of a process so far, in bytes, from /proc.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("the memory of a process cannot be seen here: %v", err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kibibytes, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}

func TestAFloodOfOneTenantNeitherKeepsOthersWaitingNorExceedsItsLimit(t *testing.T) {
	t.Parallel()
	flooded.holds(t)
}

// flooded has two tenants that enqueue more than two replicas can send, one of them with a limit in flight, and
// then a third tenant that enqueues a few intents.
var flooded = scenario{
	number: 90,
	play: func(t *testing.T, rig *harness.Rig) int {
		return loneBehind(rig, func(intents int) {
			rig.Enqueue(harness.Keyed, intents)
			rig.Exec(`INSERT INTO outbox.tenant (name, role, max_in_flight) VALUES ('flood', 'flood', NULL), ('limited', 'limited', 2)`)
			rig.Exec(`DO $$ BEGIN
				PERFORM set_config('session_replication_role', 'replica', true);  -- whose they are is no change of history
				WITH theirs AS (UPDATE outbox.intent i SET tenant = t.tenant_id FROM outbox.tenant t
					WHERE t.name = CASE WHEN i.id % 4 = 0 THEN 'limited' ELSE 'flood' END RETURNING i.id, t.tenant_id)
				UPDATE outbox.queue q SET tenant = tenant_id FROM theirs WHERE id = intent_id;
			END $$`)
		})
	},
	wrong: func(rig *harness.Rig) bool {
		const of = ` FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id LEFT JOIN outbox.tenant t ON t.tenant_id = i.tenant `
		late := rig.Count(`SELECT count(*)` + of + `WHERE t.name IS NULL AND started_at > (
			SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY started_at)` + of + `WHERE t.name = 'flood')`)
		over := rig.Count(`WITH sent AS (SELECT started_at, finished_at` + of + `WHERE t.name = 'limited' AND started_at IS NOT NULL)
			SELECT count(*) FROM sent s WHERE (SELECT count(*) FROM sent o WHERE s.started_at >= o.started_at AND s.started_at < o.finished_at) > 2`)
		return late > 0 || over > 0
	},
}

// loneBehind enqueues more intents than two replicas can send, and then a few steps of the run "lone", whose number it
// returns. The provider is slow, and requests after an eighth of the intents hang until the lone steps are enqueued. So
// most of the work is left at that time, on a fast machine and on a slow one.
func loneBehind(rig *harness.Rig, enqueue func(intents int)) int {
	const intents, first, lone = 400, 50, 3
	var requests atomic.Int64
	var released atomic.Bool
	rig.Provider.SlowFor = 20 * time.Millisecond
	rig.Provider.Plan = func(string, int) dispatchtest.Fault {
		if requests.Add(1) > first && !released.Load() {
			return dispatchtest.HangBefore
		}
		return dispatchtest.Slow
	}
	rig.Reconfigure(func(config string) string {
		return strings.Replace(steady(config), "concurrency: 16", "concurrency: 4", 1)
	})
	enqueue(intents)
	rig.Start()
	rig.Start()
	rig.AwaitRequests(first + 1)
	for number := range lone {
		rig.Step("lone", number, harness.Keyed)
	}
	released.Store(true)
	rig.Provider.Release()
	rig.AwaitRest()
	return lone
}

func TestARunWithManyIntentsKeepsNoOtherOfItsTenantWaiting(t *testing.T) {
	t.Parallel()
	crowded.holds(t)
}

// crowded has a run with more steps than two replicas can send, and then a run with a few steps.
var crowded = scenario{
	number: 91,
	play: func(t *testing.T, rig *harness.Rig) int {
		return loneBehind(rig, func(steps int) {
			for number := range steps {
				rig.Step("crowd", number, harness.Keyed)
			}
		})
	},
	wrong: func(rig *harness.Rig) bool {
		const of = ` FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id `
		return rig.Count(`SELECT count(*)`+of+`WHERE i.agent_run_id = 'lone' AND started_at > (
			SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY started_at)`+of+`WHERE i.agent_run_id = 'crowd')`) > 0
	},
}
