// Package operator is what people ask of an outbox, from the command line or a
// console: what is there, where it stands and why it waits. It shares the
// tables with the engine and none of its code.
//
// What an operator changes goes the way of an attempt: read where an intent
// stands, let the [Action] judge it, append an entry under the next number. The
// number is the fence. Whoever appends it first, or takes the queue row first,
// has won; the other one, a worker or another operator, is told.
package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNotFound says that no such intent is in the outbox.
var ErrNotFound = errors.New("no such intent")

// Console is one connection to an outbox; it serves one call at a time.
type Console struct {
	conn *pgx.Conn
}

// Open takes over a connection, which Close closes.
func Open(conn *pgx.Conn) *Console { return &Console{conn: conn} }

// Close ends the connection.
func (c *Console) Close(ctx context.Context) error {
	if err := c.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the database connection: %w", err)
	}
	return nil
}
