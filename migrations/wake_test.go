package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

func TestOnlyAnIdleProviderIsNotified(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	execute(t, pool, "INSERT INTO outbox.provider (name, idle_until) VALUES ('busy', '-infinity')")
	notified := drainertest.Listen(t, pool, "outbox")
	for _, tool := range []string{"unknown/x", "busy/x", "idle/x"} {
		execute(t, pool, callEnqueue, "r", "s", tool, "b", "{}")
	}
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the idle provider alone", got)
	}
}

func TestALaneHearsOnlyOfWhatIsDue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		notBefore string
		want      []string
	}{
		"later": {"now() + interval '1 hour'", nil},
		"now, in a transaction that began before": {"clock_timestamp()", []string{"idle"}},
		"long ago": {"'-infinity'", []string{"idle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := withIdleLanes(t)
			notified := drainertest.Listen(t, pool, "outbox")
			execute(t, pool, "SELECT outbox.enqueue($1, $2, $3, $4, $5, "+test.notBefore+")", "r", "s", "idle/x", "b", "{}")
			if got := notified(); !slices.Equal(got, test.want) {
				t.Errorf("notified %q, want %q", got, test.want)
			}
		})
	}
}

func TestATransactionWakesEachLaneOnce(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	tx := begin(t, pool)
	for step, tool := range []string{"idle/x", "other/x", "idle/y", "idle/x"} {
		execute(t, tx, callEnqueue, "r", fmt.Sprint(step), tool, "b", "{}")
	}
	const added = "SELECT n_tup_ins FROM pg_stat_xact_user_tables WHERE relid = 'outbox.wake_up'::regclass"
	if got := drainertest.Value[int](t, tx, added); got != 2 {
		t.Errorf("%d checks wait for the commit, want one for each lane", got)
	}
	commit(t, tx)
	if got := notified(); !slices.Equal(got, []string{"idle", "other"}) {
		t.Errorf("notified %q, want both lanes", got)
	}
}

func TestWhatIsRolledBackKeepsNothingFromWakingTheLane(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	tx := begin(t, pool)
	execute(t, tx, "SAVEPOINT before")
	execute(t, tx, callEnqueue, "r", "s1", "idle/x", "b", "{}")
	execute(t, tx, "ROLLBACK TO before")
	execute(t, tx, callEnqueue, "r", "s2", "idle/x", "b", "{}")
	commit(t, tx)
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the lane to hear of what is left", got)
	}
}

// slowDisk holds up the commits of those who insert into the table commits.
type slowDisk struct {
	t    *testing.T
	pool *pgxpool.Pool
}

func newSlowDisk(t *testing.T, pool *pgxpool.Pool) slowDisk {
	t.Helper()
	execute(t, pool, `
		CREATE TABLE disk (); CREATE TABLE commits ();
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN LOCK disk; RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	return slowDisk{t, pool}
}

// enqueue returns while the commit is under way, which letGo lets come to its end.
func (d slowDisk) enqueue(step, tool string) (letGo func()) {
	d.t.Helper()
	disk, tx := begin(d.t, d.pool), begin(d.t, d.pool)
	execute(d.t, disk, "LOCK disk")
	execute(d.t, tx, callEnqueue, "r", step, tool, "b", "{}")
	execute(d.t, tx, "INSERT INTO commits DEFAULT VALUES")
	committed := make(chan error)
	go func() { committed <- tx.Commit(d.t.Context()) }()
	awaitBlocked(d.t, d.pool)
	return func() {
		d.t.Helper()
		commit(d.t, disk)
		if err := <-committed; err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestOfProducersThatCommitAtOnceOneNotifies(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified, disk := drainertest.Listen(t, pool, "outbox"), newSlowDisk(t, pool)
	moment := func() int64 {
		return drainertest.Value[int64](t, pool, "SELECT floor(20 * extract(epoch FROM clock_timestamp()))::bigint")
	}
	step := 0
	drainertest.Eventually(t, "two commit within the same 50 ms", func() bool {
		step++
		began := moment()
		letGo := disk.enqueue(fmt.Sprint("first", step), "idle/x")
		execute(t, pool, callEnqueue, "r", fmt.Sprint("second", step), "idle/x", "b", "{}")
		atOnce := moment() == began
		execute(t, pool, callEnqueue, "r", fmt.Sprint("third", step), "other/x", "b", "{}")
		if got := notified(); atOnce && !slices.Equal(got, []string{"other"}) {
			t.Errorf("notified %q beside a commit that is to notify the idle lane, want the other one alone", got)
		}
		letGo()
		if got := notified(); !slices.Equal(got, []string{"idle"}) {
			t.Errorf("notified %q, want the idle lane", got)
		}
		return atOnce
	})
}

func TestACommitThatTakesLongSilencesNobodyForLong(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified, disk := drainertest.Listen(t, pool, "outbox"), newSlowDisk(t, pool)
	letGo := disk.enqueue("first", "idle/x")
	step := 0
	drainertest.Eventually(t, "the lane hears of those who commit meanwhile", func() bool {
		step++
		execute(t, pool, callEnqueue, "r", fmt.Sprint(step), "idle/x", "b", "{}")
		return slices.Equal(notified(), []string{"idle"})
	})
	letGo()
}

func TestATransactionThatStaysOpenSilencesNobody(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	notified := drainertest.Listen(t, pool, "outbox")
	open := begin(t, pool)
	execute(t, open, callEnqueue, "r", "s1", "idle/x", "b", "{}")
	execute(t, pool, callEnqueue, "r", "s2", "idle/x", "b", "{}")
	if got := notified(); !slices.Equal(got, []string{"idle"}) {
		t.Errorf("notified %q, want the lane to hear of what was committed", got)
	}
}

func TestWakingALaneLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	pool := withIdleLanes(t)
	execute(t, pool, callEnqueue, "r", "s", "idle/x", "b", "{}")
	if left := count(t, pool, "SELECT count(*) FROM outbox.wake_up"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
}

// Whoever forbids sequential scans, as outbox.enqueue does, would otherwise have
// this compiled (JIT) each time, which takes longer than all the rest.
func TestWhetherALaneWaitsIsReadFromAnIndex(t *testing.T) {
	t.Parallel()
	tx := begin(t, withIdleLanes(t))
	execute(t, tx, "SET LOCAL enable_seqscan = off")
	plan := strings.Join(drainertest.Column[string](t, tx, "EXPLAIN SELECT FROM outbox.provider WHERE idle_until > now()"), "\n")
	if !strings.Contains(plan, "provider_idle_until") || strings.Contains(plan, "JIT") {
		t.Error(plan)
	}
}

func withIdleLanes(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := newDatabase(t)
	execute(t, pool, "INSERT INTO outbox.provider (name, idle_until) SELECT unnest('{idle,other}'::text[]), now() + interval '1 hour'")
	return pool
}
