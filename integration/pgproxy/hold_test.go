package pgproxy_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/pgproxy"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// ways lists ways to commit an INSERT of the number 1.
var ways = map[string]func(ctx context.Context, conn *pgx.Conn) error{
	"a pipeline": func(ctx context.Context, conn *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue(`INSERT INTO kept VALUES ($1)`, 1)
		batch.Queue(`SELECT 1`)
		return conn.SendBatch(ctx, &batch).Close()
	},
	"a pipeline between BEGIN and COMMIT": func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO kept VALUES ($1)`, 1)
			return err
		})
	},
}

func TestACommitIsKeptBackUntilItsRelease(t *testing.T) {
	t.Parallel()
	for name, commit := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKept(t)
			held := k.proxy.HoldCommits("INTO kept")
			committed := make(chan error, 1)
			go func() { committed <- commit(t.Context(), k.client) }()
			<-held.Caught
			if k.rows() != 0 {
				t.Error("the commit was not kept back")
			}
			held.Release()
			if err := <-committed; err != nil || k.rows() != 1 {
				t.Errorf("after the release there are %d rows, want 1 (%v)", k.rows(), err)
			}
		})
	}
}

func TestAClientThatGoesAwayMeanwhileHasNotCommitted(t *testing.T) {
	t.Parallel()
	for name, commit := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKept(t)
			held := k.proxy.HoldCommits("INTO kept")
			ctx, leave := context.WithCancel(t.Context())
			committed := make(chan error, 1)
			go func() { committed <- commit(ctx, k.client) }()
			<-held.Caught
			leave()
			if err := <-committed; err == nil {
				t.Error("the client believes that it committed")
			}
			drainertest.Eventually(t, "the server gives the transaction up", func() bool { return k.writers() == 0 })
			if k.rows() != 0 {
				t.Error("it was committed")
			}
		})
	}
}

func TestOtherCommitsPass(t *testing.T) {
	t.Parallel()
	k := newKept(t)
	k.proxy.HoldCommits("something else")
	for name, commit := range ways {
		if err := commit(t.Context(), k.client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if k.rows() != len(ways) {
		t.Errorf("%d rows, want %d", k.rows(), len(ways))
	}
}

// kept is a table, a client behind the proxy, and an observer of the table.
type kept struct {
	t      *testing.T
	proxy  *pgproxy.Proxy
	client *pgx.Conn
	direct *pgx.Conn
}

func newKept(t *testing.T) *kept {
	t.Helper()
	url := drainertest.EmptyDatabase(t)
	proxy := pgproxy.New(t, url)
	k := &kept{t: t, proxy: proxy, client: connect(t, proxy.Behind(t, url)), direct: connect(t, url)}
	drainertest.Exec(t, k.direct, `CREATE TABLE kept (n int)`)
	return k
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (k *kept) rows() int { return k.count(`SELECT count(*) FROM kept`) }

// writers counts open transactions that have written.
func (k *kept) writers() int {
	return k.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL`)
}

func (k *kept) count(sql string) int {
	k.t.Helper()
	return drainertest.Value[int](k.t, k.direct, sql)
}
