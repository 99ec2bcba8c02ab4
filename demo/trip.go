package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	tripCount = 40
	// stepsOfTrip is the number of steps in each trip.
	stepsOfTrip = 5
	// ferryTrip is the number of the trip that cannot be rolled back completely.
	ferryTrip = 7
)

// trip is an agent run that makes its bookings and then pays. If the card is refused, the trip is compensated: its
// bookings are cancelled.
type trip struct {
	run   string
	kinds []string // the kinds of its bookings, in this order
	card  string
}

const (
	goodCard    = "good"
	expiredCard = "expired"
	ferry       = "ferry"
	payStep     = "pay"
)

// tripNumber returns the n-th trip. Every second trip cannot pay.
func tripNumber(n int) trip {
	t := trip{run: fmt.Sprintf("trip-%03d", n), kinds: []string{"flight", "hotel", "car", "insurance"}, card: goodCard}
	if n%2 == 1 {
		t.card = expiredCard
	}
	if n == ferryTrip {
		t.kinds[2] = ferry
	}
	return t
}

// trips returns all trips by run.
func trips() map[string]trip {
	all := map[string]trip{}
	for n := range tripCount {
		t := tripNumber(n)
		all[t.run] = t
	}
	return all
}

// declines reports whether the provider always refuses a request: a charge on an expired card, or the cancellation
// of a ferry.
func declines(path string) bool {
	return path == "/cards/"+expiredCard+"/charges" || strings.HasPrefix(path, "/"+ferry+"/") && strings.HasSuffix(path, "/cancel")
}

func (t trip) bookings() []step {
	steps := make([]step, len(t.kinds))
	for i, kind := range t.kinds {
		steps[i] = step{
			tuple:   dispatch.Tuple{AgentRunID: t.run, StepID: bookStep(kind), ToolName: "travel/book", BusinessScope: t.run},
			payload: map[string]any{"kind": kind, "traveller": t.run + "@example.com"},
		}
	}
	return steps
}

func bookStep(kind string) string { return "book-" + kind }

func (t trip) payment() step {
	return step{
		tuple:   dispatch.Tuple{AgentRunID: t.run, StepID: payStep, ToolName: "cards/charge", BusinessScope: t.run},
		payload: map[string]any{"card": t.card, "amount": 120000, "currency": "eur"},
	}
}

const bookedPoll = 200 * time.Millisecond

// travel returns when every trip has committed its payment intent.
func (a *agents) travel(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range tripCount {
		luck := rand.New(rand.NewPCG(a.seed, uint64(agentCount+n)))
		group.Go(func() error { return a.takeTrip(ctx, tripNumber(n), luck) })
	}
	return group.Wait()
}

// takeTrip starts at a random time while the other agents commit. It takes each step once the step before has
// completed.
func (a *agents) takeTrip(ctx context.Context, t trip, luck *rand.Rand) error {
	if err := think(ctx, time.Duration(luck.Float64()*float64(commitTime))); err != nil {
		return err
	}
	for n, booking := range t.bookings() {
		if err := a.take(ctx, booking, luck.Float64()); err != nil {
			return fmt.Errorf("an agent cannot book: %w", err)
		}
		if err := a.awaitBooked(ctx, t, n+1); err != nil {
			return err
		}
	}
	if err := a.take(ctx, t.payment(), luck.Float64()); err != nil {
		return fmt.Errorf("an agent cannot pay: %w", err)
	}
	return nil
}

// awaitBooked waits until so many bookings have completed. It reads their status as any agent can.
func (a *agents) awaitBooked(ctx context.Context, t trip, bookings int) error {
	for {
		var booked int
		err := a.pool.QueryRow(ctx, `SELECT count(*) FROM outbox.status WHERE agent_run_id = $1 AND status = 'completed'`, t.run).Scan(&booked)
		if err != nil {
			return fmt.Errorf("an agent cannot read its bookings: %w", err)
		}
		if booked == bookings {
			return nil
		}
		if err := think(ctx, bookedPoll); err != nil {
			return err
		}
	}
}
