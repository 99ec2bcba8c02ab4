// Package tests runs the module producer against a real Postgres, through every
// kind of transaction. It is a module of its own, so that agents' programs need
// neither River nor GORM.
package tests

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
	"github.com/agentoutbox/drainer/producer"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

var errRolledBack = errors.New("the agent's own reason not to commit")

var charge = producer.Intent{Run: "ticket-17", Step: "charge", Tool: "stripe/create_charge", Scope: "invoice_442", Payload: map[string]any{"amount": 1200}}

type note struct{}

func (note) Kind() string { return "note" }

// act writes the agent's state, enqueues, and commits, unless then returns an error.
type act func(intent producer.Intent, then func() error) (producer.Recorded, error)

const state = `INSERT INTO public.agent_state VALUES ('x')`

func ways(t *testing.T, db *pgxpool.Pool) map[string]act {
	t.Helper()
	standard := stdlib.OpenDBFromPool(db)
	t.Cleanup(func() { standard.Close() })
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: standard}))
	if err != nil {
		t.Fatal(err)
	}
	libpq, err := sql.Open("postgres", db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { libpq.Close() })
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	jobs, err := river.NewClient(riverpgxv5.New(db), &river.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	return map[string]act{
		"pgx": func(intent producer.Intent, then func() error) (recorded producer.Recorded, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, state); err != nil {
					return err
				}
				if recorded, err = producer.Enqueue(ctx, tx, intent); err != nil {
					return err
				}
				return then()
			})
			return recorded, err
		},
		"database/sql": standardly(ctx, standard), "lib/pq": standardly(ctx, libpq),
		"River": func(intent producer.Intent, then func() error) (recorded producer.Recorded, err error) {
			err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, state); err != nil {
					return err
				}
				if _, err := jobs.InsertTx(ctx, tx, note{}, nil); err != nil {
					return err
				}
				if recorded, err = producer.Enqueue(ctx, tx, intent); err != nil {
					return err
				}
				return then()
			})
			return recorded, err
		},
		"GORM": gormly(ctx, orm), "GORM with PrepareStmt": gormly(ctx, orm.Session(&gorm.Session{PrepareStmt: true})),
	}
}

func standardly(ctx context.Context, db *sql.DB) act {
	return func(intent producer.Intent, then func() error) (producer.Recorded, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return producer.Recorded{}, err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, state); err != nil {
			return producer.Recorded{}, err
		}
		recorded, err := producer.Enqueue(ctx, tx, intent)
		if err == nil {
			err = then()
		}
		if err != nil {
			return recorded, err
		}
		return recorded, tx.Commit()
	}
}

func gormly(ctx context.Context, orm *gorm.DB) act {
	return func(intent producer.Intent, then func() error) (recorded producer.Recorded, err error) {
		err = orm.Transaction(func(tx *gorm.DB) error {
			if err := tx.Exec(state).Error; err != nil {
				return err
			}
			if recorded, err = producer.Enqueue(ctx, tx.Statement.ConnPool, intent); err != nil {
				return err
			}
			return then()
		})
		return recorded, err
	}
}

func commit() error { return nil }

func TestEveryTransactionCommitsTheIntentOnceWithTheState(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	for name, act := range ways(t, db) {
		t.Run(name, func(t *testing.T) {
			intent := charge
			intent.Run = name
			counts := func() string {
				return drainertest.Value[string](t, db, `SELECT (SELECT count(*) FROM public.agent_state) || ' ' ||
					(SELECT count(*) FROM outbox.intent WHERE agent_run_id = $1)`, name)
			}
			before := counts()
			if _, err := act(intent, func() error { return errRolledBack }); !errors.Is(err, errRolledBack) || counts() != before {
				t.Errorf("a rollback left rows: %s, error %v", counts(), err)
			}
			first, err := act(intent, commit)
			if err != nil || !first.Created || first.Status != "pending" {
				t.Fatalf("got %+v, error %v", first, err)
			}
			again, err := act(intent, commit)
			if err != nil || again.Created || again.ID != first.ID || again.Key != first.Key {
				t.Errorf("again: %+v, error %v", again, err)
			}
			after := counts()
			intent.Payload = map[string]any{"amount": 9}
			var refused *producer.Refused
			if _, err := act(intent, commit); !errors.Is(err, producer.ErrKeyTaken) || !errors.As(err, &refused) ||
				refused.IntentID != first.ID || refused.Key != first.Key || refused.Status != "pending" {
				t.Errorf("another amount: %+v, error %v", refused, err)
			}
			intent.Run = "closed"
			if _, err := act(intent, commit); !errors.Is(err, producer.ErrRunClosed) {
				t.Errorf("a closed run: %v", err)
			}
			for code, want := range map[string]error{
				"OB003": producer.ErrInvalid, "OB004": producer.ErrUnknownTool,
				"OB005": producer.ErrOtherTenant, "OB006": producer.ErrLimitReached,
			} {
				intent.Tool = "refused/" + code // a trigger of this database refuses it
				if _, err := act(intent, commit); !errors.Is(err, want) || !errors.As(err, &refused) || refused.Hint != "come back" {
					t.Errorf("%s: %v", code, err)
				}
			}
			if counts() != after {
				t.Errorf("what was refused left rows: %s, before %s", counts(), after)
			}
		})
	}
}

// The commit reached the server, and its answer never came back.
func TestATransactionWhoseAnswerToCommitWasLostCanBeRunAgain(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	for name, begin := range map[string]func(url string) (tx any, commit func() error){
		"pgx": func(url string) (any, func() error) {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return tx, func() error { return tx.Commit(t.Context()) }
		},
		"database/sql": func(url string) (any, func() error) {
			standard, err := sql.Open("pgx", url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { standard.Close() })
			tx, err := standard.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return tx, tx.Commit
		},
	} {
		intent := charge
		intent.Run = name
		enqueue := func(url string) producer.Recorded {
			tx, commit := begin(url)
			recorded, err := producer.Enqueue(t.Context(), tx, intent)
			if err != nil {
				t.Fatal(err)
			}
			if err := commit(); (err != nil) != recorded.Created {
				t.Fatalf("%s: the commit of %+v has the error %v", name, recorded, err)
			}
			return recorded
		}
		first := enqueue(losingCommits(t, db.Config().ConnConfig))
		if again := enqueue(db.Config().ConnString()); again.ID != first.ID {
			t.Errorf("%s: first %+v, again %+v", name, first, again)
		}
		if intents := drainertest.Value[int](t, db, `SELECT count(*)::int FROM outbox.intent WHERE agent_run_id = $1`, name); intents != 1 {
			t.Errorf("%s: there are %d intents", name, intents)
		}
	}
}

// losingCommits returns the URL of a proxy for one connection. The proxy cuts the connection in place of the answer
// to COMMIT.
func losingCommits(t *testing.T, to *pgx.ConnConfig) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
		if err != nil {
			return
		}
		defer server.Close()
		var committing atomic.Bool
		go pass(server, client, func(sent []byte) bool {
			committing.CompareAndSwap(false, bytes.Contains(sent, []byte("commit\x00")))
			return true
		})
		pass(client, server, func([]byte) bool { return !committing.Load() })
	}()
	way, err := url.Parse(to.ConnString())
	if err != nil {
		t.Fatal(err)
	}
	way.Host = listener.Addr().String()
	return way.String()
}

// pass copies until may returns false for a piece.
func pass(to io.Writer, from io.Reader, may func([]byte) bool) {
	piece := make([]byte, 65536)
	for {
		n, err := from.Read(piece)
		if err != nil || !may(piece[:n]) {
			return
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// These are the server's own refusals. In the test of every kind of transaction a trigger raises them.
func TestTheServersOwnRefusalsHaveTheirErrors(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	url := db.Config().ConnString()
	role := "acme_" + drainertest.Value[string](t, db, `SELECT current_database()`)
	drainertest.Exec(t, db, `CREATE ROLE `+role+` NOLOGIN`)
	t.Cleanup(func() { drainertest.Exec(t, drainertest.Connect(t, url), `DROP ROLE `+role) })
	drainertest.Exec(t, db, `INSERT INTO outbox.tenant (name, role, max_due) VALUES ('acme', $1, 1)`, role)
	drainertest.Exec(t, db, `INSERT INTO outbox.tool (name) VALUES ('p/pay')`)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('taken', 's', 'p/pay', 'b', '{}')`)
	acme := drainertest.Connect(t, drainertest.Login(t, url, "outbox_agent", role))
	drainertest.Exec(t, acme, `SELECT outbox.enqueue('first', 's', 'p/pay', 'b', '{}')`)
	for want, c := range map[error]struct {
		login           *pgxpool.Pool
		run, tool, hint string
	}{
		producer.ErrOtherTenant:  {acme, "taken", "p/pay", "begin yours with your tenant's name"},
		producer.ErrLimitReached: {acme, "second", "p/pay", "Try again in "},
		producer.ErrUnknownTool:  {db, "second", "p/pya", `Did you mean "p/pay"?`},
	} {
		var refused *producer.Refused
		intent := producer.Intent{Run: c.run, Step: "s", Tool: c.tool, Scope: "b", Payload: map[string]any{}}
		if _, err := producer.Enqueue(t.Context(), drainertest.Begin(t, c.login), intent); !errors.Is(err, want) ||
			!errors.As(err, &refused) || !strings.Contains(refused.Hint, c.hint) {
			t.Errorf("got %v, want %v with the hint %q", err, want, c.hint)
		}
	}
}

// With PrepareStmt GORM's statement fails when it is prepared.
func TestATransactionThatGORMAbortedIsNamed(t *testing.T) {
	t.Parallel()
	standard := stdlib.OpenDBFromPool(prepared(t))
	defer standard.Close()
	for _, prepares := range []bool{false, true} {
		orm, err := gorm.Open(postgres.New(postgres.Config{Conn: standard}), &gorm.Config{PrepareStmt: prepares, Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		tx := orm.Begin()
		if tx.Exec(`SELECT 1/0`).Error == nil {
			t.Fatal("a division by zero is no error")
		}
		if _, err := producer.Enqueue(t.Context(), tx.Statement.ConnPool, charge); !errors.Is(err, producer.ErrTransactionAborted) {
			t.Errorf("PrepareStmt %v: %v", prepares, err)
		}
		tx.Rollback()
	}
}

func TestAPoolIsNoTransaction(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	standard := stdlib.OpenDBFromPool(db)
	defer standard.Close()
	conn, err := standard.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: standard}), &gorm.Config{PrepareStmt: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, mistaken := range []any{db, standard, conn, orm, orm.Statement.ConnPool} {
		if _, err := producer.Enqueue(t.Context(), mistaken, charge); !errors.Is(err, producer.ErrNotInTransaction) {
			t.Errorf("%T: %v", mistaken, err)
		}
	}
}

func TestALoginWithoutRightsIsToldTheRole(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.Login(t, drainertest.Database(t)))
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, enqueued := producer.Enqueue(t.Context(), tx, charge)
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	_, waited := producer.NewResults(db).Wait(ctx, 1)
	for doing, err := range map[string]error{"enqueue": enqueued, "wait": waited} {
		var server *pgconn.PgError
		if err == nil || !strings.Contains(err.Error(), "role outbox_agent") || !errors.As(err, &server) {
			t.Errorf("%s: %v", doing, err)
		}
	}
}

func TestAPayloadIsEncodedOnceAndExactly(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	intent := charge
	intent.NotBefore = time.Now().Add(time.Hour)
	intent.Headers = map[string]string{"traceparent": "00-1"}
	intent.Payload = map[string]any{"n": int64(1)<<53 + 1, "price": json.Number("1200.50"), "text": "é & <b>"}
	recorded, err := ways(t, db)["database/sql"](intent, commit)
	if err != nil {
		t.Fatal(err)
	}
	if got := drainertest.Value[string](t, db, `SELECT payload::text || headers::text FROM outbox.intent WHERE id = $1 AND not_before > now()`, recorded.ID); got !=
		`{"n": 9007199254740993, "text": "é & <b>", "price": 1200.50}{"traceparent": "00-1"}` {
		t.Errorf("stored is %s", got)
	}
}

func TestAWaitEndsWithWhatTheIntentCameTo(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	enqueue, results := ways(t, db)["pgx"], producer.NewResults(db)
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	for status, want := range map[string]error{
		"completed": nil, "failed": producer.ErrFailed, "unknown": producer.ErrUnknown, "cancelled": producer.ErrCancelled,
		"compensated": producer.ErrUndone, "compensation_failed": producer.ErrUndone,
	} {
		intent := charge
		intent.Step = status
		recorded, err := enqueue(intent, commit)
		if err != nil {
			t.Fatal(err)
		}
		settle(t, db, status, recorded.ID)
		result, err := results.Wait(ctx, recorded.ID)
		if !errors.Is(err, want) || result.Status != status || result.ProviderRef != "ref-1" || string(result.Response) != `{"n": 1}` {
			t.Errorf("%s: %+v, error %v", status, result, err)
		}
	}
	if _, err := results.Wait(ctx, 4711); !errors.Is(err, producer.ErrNotCommitted) {
		t.Errorf("an intent that is not there: %v", err)
	}
	waiting := charge
	waiting.Step = "waits"
	recorded, err := enqueue(waiting, commit)
	if err != nil {
		t.Fatal(err)
	}
	brief, end := context.WithTimeout(t.Context(), 2*time.Second) // it reads the status at least once before that
	defer end()
	result, err := results.Wait(brief, recorded.ID)
	if !errors.Is(err, producer.ErrPending) || errors.Is(err, producer.ErrFailed) || result.Status != "pending" {
		t.Errorf("in time: %+v, error %v", result, err)
	}
}

func TestAWaitInTheEnqueuingTransactionIsRefused(t *testing.T) {
	t.Parallel()
	db := prepared(t)
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	conn, err := db.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		recorded, err := producer.Enqueue(ctx, tx, charge)
		if err != nil {
			return err
		}
		for name, db := range map[string]producer.Querier{"the pool": db, "its connection": conn, "the connection": conn.Conn(), "itself": tx} {
			if _, err := producer.NewResults(db).Wait(ctx, recorded.ID); !errors.Is(err, producer.ErrNotCommitted) {
				t.Errorf("over %s: %v", name, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAThousandWaitsHaveTwoConnectionsAndHearWhatSettles(t *testing.T) {
	t.Parallel()
	w := newWaits(t, drainertest.Database(t))
	settle(t, w.db, "completed", w.ids...)
	if connections := w.connections(); connections > 2 {
		t.Errorf("%d connections wait", connections)
	}
	w.done.Wait()
}

// A program may SET ROLE after it connects, and may have a callback for notifications of its own.
func TestAWaitListensOverAConnectionThatIsSetUpAsThePools(t *testing.T) {
	t.Parallel()
	db := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, db, `SELECT outbox.enqueue('r', 's', 'p/o', 'b', '{}')`)
	ids := drainertest.Column[int64](t, db, `SELECT id FROM outbox.intent`)
	config := db.Config()
	config.MaxConns = 1
	var setUp, taken atomic.Int32
	config.AfterConnect = func(context.Context, *pgx.Conn) error { setUp.Add(1); return nil }
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { taken.Add(1) }
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	results := producer.NewResults(pool)
	var done sync.WaitGroup
	done.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
		defer cancel()
		if _, err := results.Wait(ctx, ids[0]); err != nil {
			t.Error(err)
		}
	})
	drainertest.Eventually(t, "the listener is set up, too", func() bool { return setUp.Load() == 2 })
	settle(t, db, "completed", ids...)
	done.Wait()
	if taken.Load() != 0 {
		t.Error("the program's callback took a notification that the wait listens for")
	}
}

// A restart ends both connections, and their notifications are lost. A wait still learns of intents that settled
// meanwhile, and later notifications arrive again.
func TestWaitsOutliveARestartOfPostgres(t *testing.T) {
	t.Parallel()
	server, err := throwaway.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if _, err := migrations.Up(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	w := newWaits(t, server.URL)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.db = drainertest.Connect(t, server.URL)
	settle(t, w.db, "completed", w.ids[:500]...)
	drainertest.Eventually(t, "it listens again", func() bool { return w.listening() })
	settle(t, w.db, "completed", w.ids[500:]...)
	w.done.Wait()
}

// After a failover the address may lead to a standby for a while.
func TestAStandbyEndsNoWait(t *testing.T) {
	t.Parallel()
	start := func(options ...throwaway.Option) *throwaway.Server {
		server, err := throwaway.Start(t.Context(), options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Stop() })
		return server
	}
	primary := start(throwaway.WithoutDurability())
	if _, err := migrations.Up(t.Context(), primary.URL); err != nil {
		t.Fatal(err)
	}
	db := drainertest.Connect(t, primary.URL)
	standby := drainertest.Connect(t, start(throwaway.Following(primary)).URL)
	drainertest.Exec(t, db, `SELECT outbox.enqueue('r', 's', 'p/o', 'b', '{}')`)
	ids := drainertest.Column[int64](t, db, `SELECT id FROM outbox.intent`)
	settle(t, db, "completed", ids...)
	drainertest.Eventually(t, "it follows", func() bool {
		return drainertest.Value[bool](t, standby, `SELECT EXISTS (SELECT FROM outbox.attempt)`)
	})
	if _, err := standby.Exec(t.Context(), `SELECT outbox.await('{}')`); err == nil || !strings.Contains(err.Error(), "awaited on the primary") {
		t.Errorf("the server says at a standby: %v", err)
	}
	results := producer.NewResults(standby)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := results.Wait(ctx, ids[0]); !errors.Is(err, producer.ErrPending) {
		t.Errorf("at a standby: %v", err)
	}
	drainertest.Exec(t, standby, `SELECT pg_promote()`)
	ctx, cancel = context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	if result, err := results.Wait(ctx, ids[0]); err != nil || result.Status != "completed" {
		t.Errorf("once it is the primary: %+v, error %v", result, err)
	}
}

// The session of a LISTEN would serve other clients of the pooler, too.
func TestWaitsEndBehindAPoolerAndDoNotListen(t *testing.T) {
	t.Parallel()
	url := drainertest.Database(t)
	over := drainertest.PgBouncer(t, url, "transaction", 2)
	w := beginWaits(t, url, over+"&default_query_exec_mode=exec")
	drainertest.Eventually(t, "it looks at its session, or listens", func() bool { return w.asked("pg_backend_pid") || w.asked("LISTEN") })
	settle(t, w.db, "completed", w.ids...)
	w.done.Wait()
	if w.asked("LISTEN") {
		t.Error("it listens in a session that other clients get")
	}
}

// waits are a thousand waits over a pool of one connection.
type waits struct {
	t    testing.TB
	db   *pgxpool.Pool
	name string // of the application that waits
	ids  []int64
	done sync.WaitGroup
	woke sync.Map // the time at which the wait for an id ended

	statements sync.Map // each statement that the waits have sent
}

// TraceQueryStart makes waits a tracer of its connections.
func (w *waits) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	w.statements.Store(data.SQL, true)
	return ctx
}

func (*waits) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// asked reports whether a statement with this word was sent.
func (w *waits) asked(word string) (found bool) {
	w.statements.Range(func(statement, _ any) bool {
		found = strings.Contains(statement.(string), word)
		return !found
	})
	return found
}

func newWaits(t testing.TB, url string) *waits {
	t.Helper()
	w := beginWaits(t, url, url)
	drainertest.Eventually(t, "it listens", w.listening)
	return w
}

// beginWaits begins the waits over the URL over, which may be another way to the database.
func beginWaits(t testing.TB, url, over string) *waits {
	t.Helper()
	w := &waits{t: t, db: drainertest.Connect(t, url), name: "waits_" + strings.ToLower(rand.Text())}
	drainertest.Exec(t, w.db, `SELECT outbox.enqueue('r', 's' || n, 'p/o', 'b', '{}') FROM generate_series(1, 1000) n`)
	w.ids = drainertest.Column[int64](t, w.db, `SELECT id FROM outbox.intent`)
	config, err := pgxpool.ParseConfig(over)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["application_name"] = w.name
	config.ConnConfig.Tracer = w
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	results := producer.NewResults(pool)
	for _, id := range w.ids {
		w.done.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
			defer cancel()
			result, err := results.Wait(ctx, id)
			w.woke.Store(id, time.Now())
			if err != nil || result.Status != "completed" {
				t.Errorf("intent %d: %+v, error %v", id, result, err)
			}
		})
	}
	return w
}

// listening reports whether the waits are notified of settled intents.
func (w *waits) listening() bool {
	return drainertest.Value[bool](w.t, w.db, `SELECT EXISTS (SELECT FROM outbox.waiter WHERE until > clock_timestamp())
		AND EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND query LIKE 'SELECT FROM outbox.await%' AND state = 'idle')`, w.name)
}

func (w *waits) connections() int {
	return drainertest.Value[int](w.t, w.db, `SELECT count(*)::int FROM pg_stat_activity WHERE application_name = $1`, w.name)
}

// BenchmarkAwait measures the time from the commit that settles an intent to the end of its wait. Of a thousand
// intents, ten settle every ten milliseconds.
func BenchmarkAwait(b *testing.B) {
	server, err := throwaway.Start(b.Context(), throwaway.WithSettings(map[string]string{"fsync": "on", "synchronous_commit": "on"}))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	if _, err := migrations.Up(b.Context(), server.URL); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		w := newWaits(b, server.URL)
		settled := map[int64]time.Time{}
		tick := time.NewTicker(10 * time.Millisecond)
		for batch := range slices.Chunk(w.ids, 10) {
			<-tick.C
			settle(b, w.db, "completed", batch...)
			for _, id := range batch {
				settled[id] = time.Now()
			}
		}
		w.done.Wait()
		var took []float64
		for id, at := range settled {
			woke, _ := w.woke.Load(id)
			took = append(took, max(0, float64(woke.(time.Time).Sub(at))/1e6))
		}
		slices.Sort(took)
		b.ReportMetric(took[500], "wake-p50-ms")
		b.ReportMetric(took[990], "wake-p99-ms")
		b.ReportMetric(took[999], "wake-max-ms")
		b.ReportMetric(float64(w.connections()), "connections")
		drainertest.Exec(b, w.db, `TRUNCATE outbox.intent, outbox.queue, outbox.attempt, outbox.waiter`)
	}
	b.ReportMetric(0, "ns/op")
}

func settle(t testing.TB, db *pgxpool.Pool, status string, ids ...int64) {
	t.Helper()
	drainertest.Exec(t, db, `DELETE FROM outbox.queue WHERE intent_id = ANY ($1)`, ids)
	drainertest.Exec(t, db, `INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref, response, started_at)
		SELECT id, 1, 'saga', 'test', $1, 'ref-1', '{"n": 1}', now() FROM unnest($2::bigint[]) id`, status, ids)
}

// prepared returns a database with a table for the agent's state. A trigger raises the error codes for which these
// tests have no other cause.
func prepared(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := drainertest.Connect(t, drainertest.Database(t))
	drainertest.Exec(t, db, `
		DO $do$ BEGIN
			CREATE TABLE public.agent_state (run text NOT NULL);
			CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
				RAISE EXCEPTION 'outbox: as told' USING ERRCODE = split_part(NEW.tool_name, '/', 2), HINT = 'come back';
			END $$;
			CREATE TRIGGER a_refusal BEFORE INSERT ON outbox.intent FOR EACH ROW
				WHEN (starts_with(NEW.tool_name, 'refused/')) EXECUTE FUNCTION public.refuse();
			INSERT INTO outbox.saga (agent_run_id, state, ended_at) VALUES ('closed', 'cancelled', now());
		END $do$`)
	return db
}
