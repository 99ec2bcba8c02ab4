package nemesis_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

var database = hand{name: "database", before: 800 * time.Millisecond, deck: []fault{
	{name: "replies to claims lost", cards: 2, inject: claimsUnheard},
	{name: "replies to commits lost", cards: 2, inject: commitsUnheard},
	{name: "connections cut", cards: 2, inject: cut},
	{name: "partition", cards: 2, inject: partitioned},
	{name: "black hole", cards: 2, inject: swallowed},
	{name: "connections half-open", cards: 1, inject: halfOpened},
	{name: "notifications lost", cards: 1, inject: muted},
	{name: "backends terminated", cards: 1, inject: backendsTerminated},
	{name: "Postgres crash", cards: 1, inject: crashed},
}}

func claimsUnheard(ctx context.Context, a *arena, random *rand.Rand) error {
	return lose(ctx, &a.any(random).line.Cuts, 1+random.Int64N(2))
}

// commitsUnheard is the agents' misfortune.
func commitsUnheard(ctx context.Context, a *arena, random *rand.Rand) error {
	return lose(ctx, &a.agents.line.LostCommits, 1+random.Int64N(3))
}

var errNothingLost = errors.New("nobody had anything to lose")

// lose waits for what is to be lost, so that only what happened is counted.
func lose(ctx context.Context, replies *atomic.Int64, most int64) error {
	replies.Store(most)
	defer replies.Store(0)
	for range 20 {
		if linger(ctx, 100*time.Millisecond); replies.Load() < most {
			return nil
		}
	}
	return errNothingLost
}

func cut(ctx context.Context, a *arena, random *rand.Rand) error {
	line := a.any(random).line
	line.TakeDown()
	defer line.BringUp()
	linger(ctx, between(random, 0, 200*time.Millisecond))
	return nil
}

// partitioned cuts one replica off for longer than its lease, or two.
func partitioned(ctx context.Context, a *arena, random *rand.Rand) error {
	lines := a.someLines(random)
	for _, line := range lines {
		line.TakeDown()
		defer line.BringUp()
	}
	linger(ctx, between(random, time.Second, 3*time.Second))
	return nil
}

// swallowed holds up all that is said; what was said in the dark arrives late,
// or never.
func swallowed(ctx context.Context, a *arena, random *rand.Rand) error {
	lines, late := a.someLines(random), random.IntN(2) == 0
	for _, line := range lines {
		line.Freeze()
		defer line.Thaw()
	}
	linger(ctx, between(random, 200*time.Millisecond, 2500*time.Millisecond))
	for _, line := range lines {
		if !late {
			line.TakeDown()
			defer line.BringUp()
		}
	}
	return nil
}

// halfOpened connections say nothing more, until somebody on the way forgets them.
func halfOpened(ctx context.Context, a *arena, random *rand.Rand) error {
	line := a.any(random).line
	if line.Silence() == 0 {
		return errNobody
	}
	linger(ctx, between(random, time.Second, 4*time.Second))
	line.TakeDown()
	line.BringUp()
	return nil
}

func muted(ctx context.Context, a *arena, random *rand.Rand) error {
	for _, replica := range a.fleet {
		replica.line.Muted.Store(true)
		defer replica.line.Muted.Store(false)
	}
	linger(ctx, between(random, time.Second, 2*time.Second))
	return nil
}

var errNobody = errors.New("nobody is there")

// backendsTerminated ends half of the sessions, the agents' among them.
func backendsTerminated(ctx context.Context, a *arena, random *rand.Rand) error {
	var ended int
	err := a.DB.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % 2 = $1`, random.IntN(2)).Scan(&ended)
	if err == nil && ended == 0 {
		return errNobody
	}
	return err
}

func crashed(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.cluster.crash(ctx, between(random, 0, 1500*time.Millisecond))
}
