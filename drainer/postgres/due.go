package postgres

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/jackc/pgx/v5"
)

//go:embed sql/due.sql
var dueSQL string

// Due counts each provider's due rows.
func (s *Store) Due(ctx context.Context, providers []string) (map[string]int, error) {
	rows, _ := s.control.Query(ctx, dueSQL, providers, drainer.DueLimit) // ForEachRow returns the error too
	due := map[string]int{}
	var provider string
	var count int
	if _, err := pgx.ForEachRow(rows, []any{&provider, &count}, func() error {
		due[provider] = count
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count due rows: %w", err)
	}
	return due, nil
}
