package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/internal/failpoint"

	"github.com/jackc/pgx/v5/pgconn"
)

var (
	//go:embed sql/join.sql
	joinSQL string
	//go:embed sql/beat.sql
	beatSQL string
	//go:embed sql/retire.sql
	retireSQL string
	//go:embed sql/leave.sql
	leaveSQL string
	//go:embed sql/bury.sql
	burySQL string
)

// Join makes the worker known; until then it can claim nothing.
func (s *Store) Join(ctx context.Context, worker string, providers []string) error {
	_, err := s.execute(ctx, "join", joinSQL, worker, providers)
	return err
}

// Beat reports false for a worker that was buried.
func (s *Store) Beat(ctx context.Context, worker string) (bool, error) {
	if err := failpoint.Heartbeat.Fail(); err != nil {
		return false, err
	}
	tag, err := s.execute(ctx, "beat", beatSQL, worker)
	return tag.RowsAffected() == 1, err
}

// Retire leaves the worker its claims, and no part in any limit.
func (s *Store) Retire(ctx context.Context, worker string) error {
	_, err := s.execute(ctx, "retire", retireSQL, worker)
	return err
}

// Leave is an orderly end: claims left behind become orphans at once.
func (s *Store) Leave(ctx context.Context, worker string) error {
	_, err := s.execute(ctx, "leave", leaveSQL, worker)
	return err
}

// Bury decides the death of workers that have not beaten for that long.
func (s *Store) Bury(ctx context.Context, after time.Duration) error {
	if _, err := s.control.Exec(ctx, burySQL, after.Seconds()); err != nil {
		return fmt.Errorf("bury: %w", err)
	}
	return nil
}

func (s *Store) execute(ctx context.Context, what, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := s.life.Exec(ctx, sql, args...)
	if err != nil {
		return tag, fmt.Errorf("%s: %w", what, err)
	}
	return tag, nil
}
