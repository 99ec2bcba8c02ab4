package jobs

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver"

	"github.com/agentoutbox/drainer/internal/pgpool"
)

// GetExecutor runs each of River's statements in a transaction that sets the search_path.
// River qualifies the names of tables, but not of functions and operators. A pooler accepts no
// settings at login, so without this, River could call a function that another login has
// created in a schema of the search_path.
func (s pollingDriver) GetExecutor() riverdriver.Executor {
	return s.UnwrapExecutor(transactions{pool: s.pool})
}

// transactions makes a pool look like a transaction, because River's driver accepts only a pool
// or a transaction. River never commits it as a whole, but commits each transaction
// that it begins in it.
type transactions struct {
	pgx.Tx // nil, since River calls only the methods that are defined below
	pool   *pgxpool.Pool
}

// Config returns the pool's configuration. River's driver reads there how arguments are sent.
func (t transactions) Config() *pgxpool.Config { return t.pool.Config() }

func (t transactions) Begin(ctx context.Context) (pgx.Tx, error) {
	return t.pool.BeginTx(ctx, pgpool.Transaction)
}

func (t transactions) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if strings.Contains(sql, " CONCURRENTLY ") { // rebuilds an index: impossible in a transaction, and it calls no function
		return t.pool.Exec(ctx, sql, args...)
	}
	err = pgx.BeginTxFunc(ctx, t.pool, pgpool.Transaction, func(tx pgx.Tx) error {
		tag, err = tx.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (t transactions) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (copied int64, err error) {
	err = pgx.BeginTxFunc(ctx, t.pool, pgpool.Transaction, func(tx pgx.Tx) error {
		copied, err = tx.CopyFrom(ctx, table, columns, from)
		return err
	})
	return copied, err
}

func (t transactions) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := t.Begin(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	return &committed{Rows: rows, end: func(failed error) error {
		if failed != nil {
			_ = tx.Rollback(context.WithoutCancel(ctx)) // the statement's error is returned instead
			return failed
		}
		return tx.Commit(ctx)
	}}, nil
}

func (t transactions) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return oneRow{rows, err}
}

// committed is rows that end their transaction once they are read or closed.
type committed struct {
	pgx.Rows
	end    func(failed error) error // ends the transaction; nil once it has ended
	failed error
}

func (c *committed) Next() bool {
	if c.Rows.Next() {
		return true
	}
	c.Close()
	return false
}

func (c *committed) Close() {
	c.Rows.Close()
	if c.end != nil {
		c.failed, c.end = c.end(c.Rows.Err()), nil
	}
}

func (c *committed) Err() error {
	if c.failed != nil {
		return c.failed
	}
	return c.Rows.Err()
}

type oneRow struct {
	rows   pgx.Rows
	failed error
}

func (r oneRow) Scan(into ...any) error {
	if r.failed != nil {
		return r.failed
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(into...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
