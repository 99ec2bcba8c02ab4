package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
)

const (
	agentCount = 8
	// commitTime is how long the agents take for all their intents, so that
	// drainers work while agents commit.
	commitTime = 4 * time.Second
)

// agents decide on steps, and commit each with its intent.
type agents struct {
	pool      *pgxpool.Pool
	intents   int
	seed      uint64
	rollbacks atomic.Int64
}

func newAgents(pool *pgxpool.Pool, options Options) *agents {
	return &agents{pool: pool, intents: options.Intents, seed: options.Seed}
}

// work returns when every intent is committed.
func (a *agents) work(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for number := range agentCount {
		group.Go(func() error { return a.workAs(ctx, number) })
	}
	return group.Wait()
}

// workAs is one agent; its number says which steps are its own.
func (a *agents) workAs(ctx context.Context, number int) error {
	luck := rand.New(rand.NewPCG(a.seed, uint64(number)))
	pause := commitTime * agentCount / time.Duration(a.intents)
	for n := number; n < a.intents; n += agentCount {
		if err := a.take(ctx, stepNumber(n), luck.Float64()); err != nil {
			return fmt.Errorf("an agent cannot commit: %w", err)
		}
		if err := think(ctx, time.Duration(luck.Float64()*float64(2*pause))); err != nil {
			return err
		}
	}
	return nil
}

func think(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// take commits a step, with what can go wrong on the agent's side.
func (a *agents) take(ctx context.Context, s step, luck float64) error {
	switch {
	case luck < 0.05: // changes its mind half-way, then takes the step after all
		return errors.Join(a.abandon(ctx, s, pgx.Tx.Rollback), a.commit(ctx, s))
	case luck < 0.10: // dies half-way; its successor takes the step again
		return errors.Join(a.abandon(ctx, s, cutConnection), a.commit(ctx, s))
	case luck < 0.20: // dies after its commit; its successor does not know
		return errors.Join(a.commit(ctx, s), a.commit(ctx, s))
	case luck < 0.25: // was thought dead, so that two of it run
		return a.commitTwice(ctx, s)
	default:
		return a.commit(ctx, s)
	}
}

func (a *agents) commitTwice(ctx context.Context, s step) error {
	var twins errgroup.Group
	for range 2 {
		twins.Go(func() error { return a.commit(ctx, s) })
	}
	return twins.Wait()
}

func (a *agents) commit(ctx context.Context, s step) error {
	return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error { return s.write(ctx, tx) })
}

// abandon writes the step and then ends the transaction without a commit.
func (a *agents) abandon(ctx context.Context, s step, end func(pgx.Tx, context.Context) error) error {
	tx, err := a.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // gives the connection back, whole or not
	if err := s.write(ctx, tx); err != nil {
		return err
	}
	a.rollbacks.Add(1)
	return end(tx, ctx)
}

// cutConnection is what Postgres sees of a process that dies.
func cutConnection(tx pgx.Tx, _ context.Context) error { return tx.Conn().PgConn().Conn().Close() }
