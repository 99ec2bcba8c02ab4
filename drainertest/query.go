package drainertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect returns a pool that is closed after the test.
func Connect(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), databaseURL)
	if err != nil {
		t.Fatalf("connecting to the test's database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

type beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Begin begins a transaction. If it is still open after the test, it is rolled back.
func Begin(t testing.TB, db beginner) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// Exec runs a statement that must succeed. Like the functions below it also works in a cleanup, after the end of
// the test's context.
func Exec(t testing.TB, db executor, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value returns the only column of the only row of a query. Otherwise the test fails.
func Value[V any](t testing.TB, db querier, sql string, args ...any) V {
	t.Helper()
	rows, _ := db.Query(context.Background(), sql, args...) // CollectExactlyOneRow returns the error, too
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Column returns the only column of a query.
func Column[V any](t testing.TB, db querier, sql string, args ...any) []V {
	t.Helper()
	rows, _ := db.Query(context.Background(), sql, args...) // CollectRows returns the error, too
	values, err := pgx.CollectRows(rows, pgx.RowTo[V])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// Login creates a login that is a member of these roles only, and returns its URL for the database. After the
// test, the login and all that it owns there are dropped.
func Login(t testing.TB, databaseURL string, roles ...string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	name, password := newName(), rand.Text()
	owner := Connect(t, databaseURL)
	Exec(t, owner, "CREATE ROLE "+name+" LOGIN NOSUPERUSER PASSWORD '"+password+"'")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), databaseURL)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background())
		Exec(t, conn, "DROP OWNED BY "+name+" CASCADE")
		Exec(t, conn, "DROP ROLE "+name)
	})
	for _, role := range roles {
		Exec(t, owner, "GRANT "+role+" TO "+name)
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

// AwaitBlocked returns once a statement in the database waits for a lock.
func AwaitBlocked(t testing.TB, db querier) {
	t.Helper()
	Eventually(t, "a statement waits for a lock", func() bool {
		return Value[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`)
	})
}

// Patience bounds every wait for a condition. It is far above the time that a slow machine needs.
const Patience = 2 * time.Minute

// Expiring returns a context whose deadline passes when the test calls expire. So a test can let it pass after
// another event, even if a slow machine takes long for that event.
func Expiring(t testing.TB) (ctx context.Context, expire func()) {
	e := expiring{t.Context(), make(chan struct{})}
	expire = sync.OnceFunc(func() { close(e.up) })
	t.Cleanup(expire)
	return e, expire
}

type expiring struct {
	context.Context
	up chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.up }

func (e expiring) Err() error {
	select {
	case <-e.up:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Eventually returns once the condition holds. It fails the test if that takes longer than [Patience].
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		}
	}
}

// misplaced finds intents that are not in exactly one of queue, claim and settled. If a claimed row has an attempt
// with the claim's number, it has been settled already.
const misplaced = `
WITH place AS (
  SELECT intent_id FROM outbox.queue
  UNION ALL
  SELECT h.intent_id
  FROM outbox.claim c, unnest(c.intent_ids, c.attempts) AS h (intent_id, attempt)
  WHERE NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = h.intent_id AND a.attempt = h.attempt)
  UNION ALL
  SELECT intent_id FROM (
    SELECT DISTINCT ON (intent_id) intent_id, next_attempt_at FROM outbox.attempt ORDER BY intent_id, attempt DESC
  ) newest
  WHERE next_attempt_at IS NULL
)
SELECT coalesce(i.id, p.intent_id), count(p.intent_id), i.id IS NOT NULL
FROM outbox.intent i FULL JOIN place p ON p.intent_id = i.id
GROUP BY i.id, p.intent_id
HAVING count(p.intent_id) <> 1 OR i.id IS NULL
ORDER BY 1 LIMIT 10`

// strayed finds queue rows with another tenant than their intent, and undos with another tenant than the step that
// they undo.
const strayed = `
SELECT q.intent_id FROM outbox.queue q JOIN outbox.intent i ON i.id = q.intent_id WHERE q.tenant <> coalesce(i.tenant, 0)
UNION SELECT u.id FROM outbox.intent u JOIN outbox.intent i ON i.id = u.compensates WHERE u.tenant IS DISTINCT FROM i.tenant`

// Tenant makes the login of the test's connection one of two tenants.
func Tenant(t testing.TB, db executor) {
	t.Helper()
	Exec(t, db, `INSERT INTO outbox.tenant (name, role) VALUES ('other', 'other'), ('own', session_user)`)
}

// AssertInvariant fails the test unless every intent is in exactly one of queue, claim and settled, and belongs to
// the right tenant. It reads one snapshot, so it may run at any time.
func AssertInvariant(t testing.TB, db querier) {
	t.Helper()
	var (
		intent int64
		places int
		exists bool
	)
	rows, _ := db.Query(t.Context(), misplaced) // ForEachRow returns the error too
	_, err := pgx.ForEachRow(rows, []any{&intent, &places, &exists}, func() error {
		t.Errorf("intent %d (exists: %t) is in %d of queue, claim and settled, instead of in exactly one", intent, exists, places)
		return nil
	})
	if err != nil {
		t.Errorf("checking the invariant: %v", err)
	}
	for _, intent := range Column[int64](t, db, strayed) {
		t.Errorf("intent %d is queued as another tenant's, or undoes another tenant's step", intent)
	}
}

// Listen returns a function that returns all notifications of the channel since its last call.
func Listen(t testing.TB, db *pgxpool.Pool, channel string) (notified func() []string) {
	t.Helper()
	listener, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Release)
	Exec(t, listener, "LISTEN "+channel)
	return func() (payloads []string) {
		t.Helper()
		const end = "that was all"
		Exec(t, db, "SELECT pg_notify($1, $2)", channel, end)
		for {
			notification, err := listener.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if notification.Payload == end {
				return payloads
			}
			payloads = append(payloads, notification.Payload)
		}
	}
}

// Log holds all lines that were logged so far, by any goroutine.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// ShadowRoutines creates in public a copy of every function and operator of pg_catalog. For routines of
// polymorphic types it creates a copy for each type, or each pair of types. A call of a copy calls
// public.attack(), which the test defines.
const ShadowRoutines = `DO $$
DECLARE
  types regtype[] := '{bigint,int,text,jsonb,timestamptz,interval,float8,numeric,boolean,uuid,name,oid,text[],bigint[],int[],timestamptz[],boolean[]}';
  shadow record;
BEGIN
  PERFORM set_config('search_path', 'pg_catalog', true);  -- so that its own shadows do not affect it
  FOR shadow IN
    WITH builtin AS (
      SELECT p.proname, p.oid, p.prorettype, p.provariadic <> 0 OR EXISTS (
        SELECT FROM pg_type t WHERE t.typtype = 'p' AND (t.oid = p.prorettype OR t.oid = ANY (p.proargtypes::oid[]))) AS takes_any
      FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND NOT p.proretset AND NOT coalesce(p.proargmodes && '{o,b,t}', false)
        AND (p.prokind = 'f' OR p.oid IN (SELECT aggfnoid FROM pg_aggregate WHERE aggkind = 'n')))
    SELECT proname AS name, pg_get_function_identity_arguments(oid) AS args, prorettype::regtype AS result
    FROM builtin WHERE NOT takes_any
    UNION
    SELECT proname, format('%s', t), 'text'
    FROM (SELECT DISTINCT proname FROM builtin WHERE takes_any AND proname !~ '(in|out|recv|send|handler)$') b, unnest(types) t
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp ' ||
                     'AS ''BEGIN PERFORM public.attack(); RETURN NULL; END''', shadow.name, shadow.args, shadow.result);
    EXCEPTION WHEN duplicate_function OR feature_not_supported OR invalid_function_definition THEN NULL;
    END;
  END LOOP;
  FOR shadow IN
    SELECT o.name, l, r, 'shadow_' || row_number() OVER () AS function,
           coalesce((SELECT e.oprresult::regtype FROM pg_operator e WHERE (e.oprname, e.oprleft, e.oprright) = (o.name, l::oid, r::oid)),
                    CASE WHEN o.name IN ('+', '-', '*', '/', '||') THEN l ELSE 'boolean'::regtype END) AS result
    FROM unnest('{+,-,*,/,%,||,=,<>,<,>,<=,>=,~,~~,@>,->,->>}'::text[]) AS o (name), unnest(types) l, unnest(types) r
  LOOP
    EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp ' ||
                   'AS ''BEGIN PERFORM public.attack(); RETURN NULL; END''', shadow.function, shadow.l, shadow.r, shadow.result);
    EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.%I, LEFTARG = %s, RIGHTARG = %s)',
                   shadow.name, shadow.function, shadow.l, shadow.r);
  END LOOP;
END $$`
