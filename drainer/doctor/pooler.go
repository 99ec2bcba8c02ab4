package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// poolerPatience bounds a wait for a connection that a pooler may not have.
const poolerPatience = 2 * time.Second

// poolerRounds outlast other clients, who take the servers that are watched.
const poolerRounds = 20

// pooling is what stands between this machine and Postgres, told by what it
// does rather than by what it says of itself.
type pooling struct {
	isPooler       bool // the session's number is not the one that was given at login
	perTransaction bool // a session moves between servers, or shares one
	perStatement   bool // there are no transactions
	isNarrow       bool // there was no second server to be had
	keepsPrepared  bool // a prepared statement follows its session
}

func lookAtPooler(ctx context.Context, x *examination) ([]Finding, error) {
	seen, err := x.observePooling(ctx)
	if err != nil {
		return nil, err
	}
	return []Finding{judgePooling(seen, x.Database.ConnConfig.DefaultQueryExecMode)}, nil
}

func judgePooling(seen pooling, mode pgx.QueryExecMode) Finding {
	const needsExec = "add default_query_exec_mode=exec to the database URL; or let PgBouncer 1.21 or later keep prepared statements (max_prepared_statements)"
	isSafe := mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol
	switch {
	case !seen.isPooler:
		return ok("none; prepared statements work")
	case seen.perStatement:
		return problem("set pool_mode = session or transaction for this database", "a pooler in statement mode, which refuses transactions")
	case seen.isNarrow && !seen.perTransaction:
		return warning("raise the pooler's pool_size to 14 for each drainer", "a pooler that has no second connection to Postgres to give")
	case !seen.perTransaction:
		return ok("a pooler in session mode; prepared statements work")
	case isSafe:
		return ok("a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=%s)", mode)
	case mode == pgx.QueryExecModeDescribeExec:
		return problem(needsExec, "a pooler in transaction mode comes between describing a statement and running it")
	case seen.keepsPrepared:
		return ok("a pooler in transaction mode that keeps prepared statements")
	}
	return problem(needsExec, "a pooler in transaction mode loses prepared statements, which this database URL asks for")
}

func (x *examination) observePooling(ctx context.Context) (seen pooling, err error) {
	a, err := x.session(ctx)
	if err != nil {
		return seen, err
	}
	defer a.Close(context.WithoutCancel(ctx))
	home, err := backend(ctx, a)
	if err != nil {
		return seen, err
	}
	if seen.isPooler = home != a.PgConn().PID(); !seen.isPooler {
		return seen, nil
	}
	b, err := x.session(ctx)
	if err != nil {
		return seen, err
	}
	defer b.Close(context.WithoutCancel(ctx))
	waiting, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	for range poolerRounds {
		if seen.isDecided() {
			break
		}
		if err := seen.watchSessions(waiting, a, b); err != nil {
			return seen, err
		}
	}
	if seen.perTransaction {
		seen.keepsPrepared, err = keepsPrepared(ctx, a, b)
	}
	return seen, err
}

func (seen *pooling) isDecided() bool {
	return seen.perTransaction || seen.perStatement || seen.isNarrow
}

// watchSessions has one session hold a transaction, and sees whether it took
// the server that the other one has just used.
func (seen *pooling) watchSessions(waiting context.Context, a, b *pgx.Conn) error {
	home, err := backend(waiting, a)
	if err != nil {
		return err
	}
	taken, release, err := hold(waiting, b)
	if err != nil {
		seen.isNarrow = waiting.Err() != nil
		seen.perStatement = !seen.isNarrow
		return nil
	}
	defer release()
	if seen.perTransaction = taken == home; seen.perTransaction {
		return nil
	}
	now, err := backend(waiting, a)
	if waiting.Err() != nil {
		seen.perTransaction, seen.isNarrow = true, true // it gave its server back, and there is no other
		return nil
	}
	seen.perTransaction = now != home
	return err
}

// keepsPrepared prepares a statement, and sees whether another session finds
// its name taken at the same server: a pooler that keeps statements renames them.
func keepsPrepared(ctx context.Context, a, b *pgx.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	for range poolerRounds {
		statement := "drainer_doctor_" + rand.Text() // new: this server may know an earlier round's
		home, release, err := hold(ctx, a)
		if err != nil {
			return false, err
		}
		_, err = a.PgConn().Prepare(ctx, statement, "SELECT 1", nil)
		release()
		if err != nil {
			return false, unlessRefused(err)
		}
		taken, release, err := hold(ctx, b)
		if err != nil {
			return false, err
		}
		if taken == home {
			_, err = b.PgConn().Prepare(ctx, statement, "SELECT 1", nil)
		}
		release()
		if taken == home {
			return err == nil, unlessRefused(err)
		}
	}
	return false, nil // too much goes on to tell; exec is right either way
}

// hold keeps a session at one server until release.
func hold(ctx context.Context, conn *pgx.Conn) (pid uint32, release func(), err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, nil, err
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
	if pid, err = backend(ctx, conn); err != nil {
		release()
		return 0, nil, err
	}
	return pid, release, nil
}

// unlessRefused forgets an error that is the answer to the question.
func unlessRefused(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		return nil
	}
	return err
}

// session is a connection outside of the pool, for what moves or listens.
func (x *examination) session(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, x.pool.Config().ConnConfig.Copy())
}

func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var number int64
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()::bigint").Scan(&number)
	return uint32(number), err
}
