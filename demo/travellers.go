package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
)

const bookedPoll = 200 * time.Millisecond

// travel returns when every trip has committed its payment.
func (a *agents) travel(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range tripCount {
		luck := rand.New(rand.NewPCG(a.seed, uint64(agentCount+n)))
		group.Go(func() error { return a.takeTrip(ctx, tripNumber(n), luck) })
	}
	return group.Wait()
}

// takeTrip starts some time while the other agents commit, and pays once
// everything is booked.
func (a *agents) takeTrip(ctx context.Context, t trip, luck *rand.Rand) error {
	if err := think(ctx, time.Duration(luck.Float64()*float64(commitTime))); err != nil {
		return err
	}
	for _, booking := range t.bookings() {
		if err := a.take(ctx, booking, luck.Float64()); err != nil {
			return fmt.Errorf("an agent cannot book: %w", err)
		}
	}
	if err := a.awaitBooked(ctx, t); err != nil {
		return err
	}
	if err := a.take(ctx, t.payment(), luck.Float64()); err != nil {
		return fmt.Errorf("an agent cannot pay: %w", err)
	}
	return nil
}

// awaitBooked reads what became of the bookings as any agent can.
func (a *agents) awaitBooked(ctx context.Context, t trip) error {
	for {
		var booked int
		err := a.pool.QueryRow(ctx, `SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = 'completed'`, t.run).Scan(&booked)
		if err != nil {
			return fmt.Errorf("an agent cannot read its bookings: %w", err)
		}
		if booked == len(t.kinds) {
			return nil
		}
		if err := think(ctx, bookedPoll); err != nil {
			return err
		}
	}
}
