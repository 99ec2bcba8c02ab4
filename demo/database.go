package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/internal/throwaway"
	"github.com/agentoutbox/drainer/migrations"
)

// agentState is what agents keep for themselves; an intent is committed with it
// or not at all.
const agentState = `CREATE TABLE agent_state (
	agent_run_id text, step_id text, decided text NOT NULL, PRIMARY KEY (agent_run_id, step_id))`

// database is a migrated database that goes when it is closed.
type database struct {
	url  string
	pool *pgxpool.Pool
	drop func() error // ends what holds the database: it, or its whole server
}

// openDatabase returns a migrated database of its own: on the server at
// serverURL, or on a throwaway one where that is empty.
func openDatabase(ctx context.Context, serverURL string) (*database, error) {
	d := &database{}
	var err error
	if serverURL == "" {
		err = d.startServer(ctx)
	} else {
		err = d.create(ctx, serverURL)
	}
	if err == nil {
		err = d.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *database) startServer(ctx context.Context) error {
	server, err := throwaway.Start(ctx)
	if err != nil {
		return fmt.Errorf("%w\nor name a server that runs: drainer demo --database-url URL", err)
	}
	d.url, d.drop = server.URL, server.Stop
	return nil
}

func (d *database) create(ctx context.Context, serverURL string) error {
	name := "drainer_demo_" + strings.ToLower(rand.Text()[:10])
	if err := execOnce(ctx, serverURL, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("creating the demo's own database: %w", err)
	}
	d.url = withDatabase(serverURL, name)
	d.drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := execOnce(ctx, serverURL, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("dropping database %s: %w", name, err)
		}
		return nil
	}
	return nil
}

func (d *database) prepare(ctx context.Context) error {
	if _, err := migrations.Up(ctx, d.url); err != nil {
		return err
	}
	var err error
	if d.pool, err = pgxpool.New(ctx, d.url); err != nil {
		return fmt.Errorf("connecting to the demo's database: %w", err)
	}
	if _, err := d.pool.Exec(ctx, agentState); err != nil {
		return fmt.Errorf("creating the agents' table: %w", err)
	}
	return nil
}

func (d *database) close() error {
	if d.pool != nil {
		d.pool.Close()
	}
	if d.drop == nil {
		return nil
	}
	return d.drop()
}

func execOnce(ctx context.Context, databaseURL, sql string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

// withDatabase points a URL, or a list of keywords, to another database.
func withDatabase(server, name string) string {
	parsed, err := url.Parse(server)
	if err != nil || !strings.HasPrefix(parsed.Scheme, "postgres") {
		return server + " dbname=" + name
	}
	parsed.Path = "/" + name
	return parsed.String()
}
