package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/migrations"
)

const connectTimeout = 5 * time.Second

// connect fails fast, and tells a database that is away from one that answers.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	settings, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errDatabaseURL
	}
	settings.ConnectTimeout = connectTimeout
	conn, err := pgx.ConnectConfig(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDatabaseUnreachable, err)
	}
	return conn, nil
}

// connectCurrent also refuses a schema that this drainer is ahead of.
func connectCurrent(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := migrations.Check(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

func checkDatabase(ctx context.Context, url string) error {
	conn, err := connectCurrent(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// withConsole runs a command's work on a connection of its own.
func (o *options) withConsole(command *cobra.Command, work func(*operator.Console) error) error {
	url, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	conn, err := connectCurrent(command.Context(), url)
	if err != nil {
		return err
	}
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(command.Context()))
	return work(console)
}
