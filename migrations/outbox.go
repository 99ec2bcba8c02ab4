package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed sql/*.sql
var files embed.FS

func outboxMigrations() ([]Migration, error) {
	entries, err := files.ReadDir("sql")
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(entries))
	for _, entry := range entries {
		version, err := goose.NumericComponent(entry.Name())
		if err != nil {
			return nil, err
		}
		_, name, _ := strings.Cut(strings.TrimSuffix(entry.Name(), ".sql"), "_")
		all = append(all, Migration{Set: SetOutbox, Version: version, Name: name})
	}
	return all, nil
}

func outboxUp(ctx context.Context, pool *pgxpool.Pool) error {
	return withGoose(pool, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

func outboxDown(ctx context.Context, pool *pgxpool.Pool) error {
	return withGoose(pool, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

func withGoose(pool *pgxpool.Pool, run func(*goose.Provider) error) error {
	sql, err := fs.Sub(files, "sql")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), sql,
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if err := errors.Join(run(provider), provider.Close()); err != nil {
		return fmt.Errorf("migrating schema outbox: %w", err)
	}
	return nil
}
