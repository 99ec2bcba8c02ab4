package migrations_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/drainertest"
)

// settle appends the last attempt of these intents in one statement, as a batch does.
const settle = `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref)
	SELECT id, 1, 'w', 'test', $2, 'ref' FROM unnest($1::bigint[]) id`

func await(t *testing.T, db *pgxpool.Pool, ids ...int64) (told []string) {
	t.Helper()
	return drainertest.Column[string](t, db, `SELECT intent_id || ' ' || coalesce(status, 'is not there') || coalesce(' ' || provider_ref, '')
		FROM outbox.await($1) ORDER BY intent_id`, ids)
}

func TestAwaitTellsWhatHasSettledAndWhatIsNotThere(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	for step := range 3 {
		drainertest.Exec(t, agent, callEnqueue, "r", fmt.Sprint(step), "noop/x", "b", "{}")
	}
	drainertest.Exec(t, owner, settle, []int64{2}, "completed")
	drainertest.Exec(t, owner, settle, []int64{3}, "unknown")
	drainertest.Exec(t, owner, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at) VALUES (1, 1, 'w', 'test', 'pending', now())`)
	if told, want := await(t, agent, 1, 2, 3, 4711), []string{"2 completed ref", "3 unknown ref", "4711 is not there"}; !slices.Equal(told, want) {
		t.Errorf("await tells %q, want %q", told, want)
	}
	if told := await(t, agent); len(told) != 0 {
		t.Errorf("await of nothing tells %q", told)
	}
}

// await reads as its caller: what the view refuses to a login it refuses too.
func TestAwaitTellsNoMoreThanTheView(t *testing.T) {
	t.Parallel()
	owner := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, owner, callEnqueue, "r", "s", "noop/x", "b", "{}")
	drainertest.Exec(t, owner, settle, []int64{1}, "completed")
	asRole(t, owner, "outbox_agent", map[string]string{"SELECT * FROM outbox.await('{1}')": ""})
	drainertest.Exec(t, owner, `REVOKE SELECT ON outbox.status FROM outbox_agent`)
	asRole(t, owner, "outbox_agent", map[string]string{"SELECT * FROM outbox.await('{1}')": forbidden})
}

func TestAnotherTenantsIntentIsNotThereToAwait(t *testing.T) {
	t.Parallel()
	w := newWalled(t)
	drainertest.Exec(t, w.acme, callEnqueue, "r", "s", "noop/x", "b", "{}")
	assertTold := func(wantAcme ...string) {
		t.Helper()
		if told := await(t, w.acme, 1); !slices.Equal(told, wantAcme) {
			t.Errorf("its own tenant is told %q, want %q", told, wantAcme)
		}
		for who, stranger := range map[string]*pgxpool.Pool{"globex": w.globex, "a login of no tenant": w.nomad} {
			if told := await(t, stranger, 1, 2); !slices.Equal(told, []string{"1 is not there", "2 is not there"}) {
				t.Errorf("%s is told %q", who, told)
			}
		}
	}
	assertTold()
	drainertest.Exec(t, w.owner, settle, []int64{1}, "completed")
	assertTold("1 completed ref")
}

func TestABatchNotifiesOnceAndOnlyWhileSomeoneWaits(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	notified := drainertest.Listen(t, owner, "outbox_settled")
	next := int64(0)
	assertTold := func(when string, want ...string) {
		t.Helper()
		next += 2
		drainertest.Exec(t, owner, settle, []int64{next, next + 1}, "completed")
		if told := notified(); !slices.Equal(told, want) {
			t.Errorf("%s what settles notifies %q, want %q", when, told, want)
		}
	}
	assertTold("before anyone waits")
	await(t, agent)
	assertTold("while a login waits", "")
	drainertest.Exec(t, owner, `UPDATE outbox.waiter SET until = clock_timestamp()`)
	assertTold("after the login's time")
	await(t, agent)
	assertTold("once it asks again", "")
}

func TestALoginArmsForHalfAMinuteAndWithOneRow(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	drainertest.Exec(t, owner, `INSERT INTO outbox.waiter VALUES ('nobody of this name', 'infinity')`)
	version := func() string {
		await(t, agent)
		return drainertest.Value[string](t, owner, `SELECT string_agg(xmin::text, ' ') FROM outbox.waiter
			WHERE until BETWEEN clock_timestamp() + interval '10 s' AND clock_timestamp() + interval '30 s'`)
	}
	first := version()
	if again := version(); again != first {
		t.Errorf("a second process of the login writes the row again: %s, %s", first, again)
	}
	drainertest.Exec(t, owner, `UPDATE outbox.waiter SET until = clock_timestamp() + interval '12 s' WHERE until < 'infinity'`)
	if again := version(); again == first {
		t.Error("a row of less than half its time is not renewed")
	}
	if rows := drainertest.Value[int](t, owner, `SELECT count(*) FROM outbox.waiter`); rows != 1 {
		t.Errorf("%d rows stay, of one login that is there", rows)
	}
}

// A login's own open transaction, and one that may not write, leave a wait without notifications, and nothing worse.
func TestAwaitHoldsNothingUpAndWritesOnlyWhereItMay(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	owner, agent := drainertest.Connect(t, url), drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent"))
	reading, err := agent.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Rollback(t.Context())
	drainertest.Exec(t, reading, `SELECT outbox.await('{1}')`)
	if rows := drainertest.Value[int](t, owner, `SELECT count(*) FROM outbox.waiter`); rows != 0 {
		t.Errorf("a transaction that only reads leaves %d rows", rows)
	}
	open := begin(t, agent)
	drainertest.Exec(t, open, `SELECT outbox.await('{1}')`)
	await(t, agent, 1) // comes back
}
