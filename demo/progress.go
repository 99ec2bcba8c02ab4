package demo

import (
	"context"
	"fmt"
	"time"
)

const progressPoll = 100 * time.Millisecond

// Progress is how far a demo has come. Numbers count the agents' intents, unless
// they say otherwise.
type Progress struct {
	Wanted     int // that the agents mean to commit
	Enqueued   int
	Settled    int
	InProgress int
	Effects    int // in the provider's ledger
	Retries    int // attempts that are to be repeated
	Recovered  int // taken over from the dead
	Trips      Trips
}

// halfWay comes while there is enough left to lose, of intents and of trips.
func (p Progress) halfWay() bool { return 2*p.Settled >= p.Wanted || 2*p.Trips.ended() >= tripCount }

// over comes when every intent is settled, every trip that cannot be paid is
// taken back as far as it can be, and a human was told of what cannot.
func (p Progress) over() bool {
	return p.Settled >= p.Wanted && p.Trips.ended() >= tripCount && p.Trips.Pages >= p.Trips.Stuck
}

// Trips counts trips by how far they have come.
type Trips struct {
	Paid      int
	GoingBack int
	Undone    int
	Stuck     int
	Pages     int // received by now
}

func (t Trips) ended() int { return t.Paid + t.Undone + t.Stuck }

// String is one line for the screen.
func (t Trips) String() string {
	return fmt.Sprintf("trips: %d paid, %d going back, %d undone, %d stuck, %d paged", t.Paid, t.GoingBack, t.Undone, t.Stuck, t.Pages)
}

// await shows the progress until it satisfies the condition.
func (s *stage) await(ctx context.Context, enough func(Progress) bool) error {
	poll := time.NewTicker(progressPoll)
	defer poll.Stop()
	for {
		progress, err := readProgress(ctx, s.database.pool)
		if err != nil {
			return err
		}
		progress.Wanted = s.wanted()
		progress.Effects = s.provider.ledger.Audit().TotalEffects()
		progress.Trips.Pages = len(s.pager.received())
		s.Screen.Show(progress)
		if enough(progress) {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
