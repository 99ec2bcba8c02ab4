package nemesis_test

import (
	"context"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// hands are who does harm.
var hands = []hand{processes, database, outside}

// storm breaks things for that long, while agents work, and on a slow machine
// until every fault has come up. Once it returns, each has been undone.
func (a *arena) storm(lasts time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), overtime*lasts)
	defer cancel()
	a.chronicle.begin()
	var all sync.WaitGroup
	all.Go(func() { a.agents.work(ctx, a.seed) })
	for _, hand := range hands {
		all.Go(func() { hand.play(ctx, a) })
	}
	all.Go(func() { a.decideNowAndThen(ctx) })
	for linger(ctx, lasts); ctx.Err() == nil && len(a.missing(lasts)) > 0; {
		linger(ctx, time.Second)
	}
	cancel()
	all.Wait()
}

// overtime is how many times as long a storm may last.
const overtime = 3

// full is a run long enough for each fault to come up once.
const full = 40 * time.Second

// often is enough of each fault, however long it lasts.
const often = 5

// missing are the faults that came up too rarely, bad luck aside.
func (a *arena) missing(lasted time.Duration) (kinds []string) {
	for _, fault := range a.faults() {
		if !fault.lucky && a.chronicle.count(fault.name) < min(int(lasted/full), often) {
			kinds = append(kinds, fault.name)
		}
	}
	return kinds
}

func (a *arena) faults() []fault {
	all := []fault{{name: failpoints}}
	for _, hand := range hands {
		all = append(all, hand.deck...)
	}
	return all
}

func (a *arena) decideNowAndThen(ctx context.Context) {
	for ctx.Err() == nil {
		linger(ctx, 3*time.Second)
		_ = decide(ctx, a.World) // the database may be away; there will be a next time
	}
}

// heal takes the mines away with the daemons that carry them, and waits until
// the fleet is whole.
func (a *arena) heal() {
	a.t.Helper()
	a.mines.swept.Store(true)
	a.DB.Reset()
	drainertest.Eventually(a.t, "every replica serves again, without a mine", func() bool {
		return a.everyDaemon(func(life *life) bool { return !life.disarm() })
	})
}
