package doctor

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/jackc/pgx/v5"
)

// lookAtNotifications sends one to itself, on a channel that nobody else
// knows, from another session than the one that listens.
func lookAtNotifications(ctx context.Context, x *examination) ([]Finding, error) {
	listener, err := x.session(ctx)
	if err != nil {
		return nil, err
	}
	defer listener.Close(context.WithoutCancel(ctx))
	channel := "drainer_doctor_" + strings.ToLower(rand.Text())
	if _, err := listener.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return nil, err
	}
	// A pooler keeps the server's session when this one is over.
	defer func() { _, _ = listener.Exec(context.WithoutCancel(ctx), "UNLISTEN *") }()
	if _, err := x.pool.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, x.Limits.Notify)
	defer cancel()
	switch _, err := listener.WaitForNotification(waiting); {
	case err == nil:
		return []Finding{ok("LISTEN and NOTIFY work")}, nil
	case waiting.Err() != nil && ctx.Err() == nil:
		return []Finding{warning("if a quarter of a second matters: connect to Postgres itself, or to a pooler in session mode",
			"a notification did not arrive within %s, so new intents are found by polling, every 250 ms", x.Limits.Notify)}, nil
	default:
		return nil, err
	}
}
