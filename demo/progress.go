package demo

import (
	"context"
	"time"
)

const progressPoll = 100 * time.Millisecond

// Progress is how far a demo has come. Settled and what follows count intents,
// unless they say otherwise.
type Progress struct {
	Enqueued   int
	Settled    int
	InProgress int
	Effects    int // in the provider's ledger
	Retries    int // attempts that are to be repeated
	Recovered  int // taken over from the dead
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
		progress.Effects = s.provider.ledger.Audit().TotalEffects()
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
