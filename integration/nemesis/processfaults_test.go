package nemesis_test

import (
	"context"
	"math/rand/v2"
	"syscall"
	"time"
)

// failpoints are counted under this name; they are laid, not dealt.
const failpoints = "failpoint"

// suspension is longer than a lease, and shorter than it takes until somebody
// relies on it that a lost row's request can no longer arrive: see margin in
// the configuration.
const suspension = 1400 * time.Millisecond

var processes = hand{name: "processes", before: 800 * time.Millisecond, deck: []fault{
	{name: "kill -9", cards: 3, inject: killed},
	{name: "SIGTERM", cards: 2, inject: terminated},
	{name: "SIGTERM twice", cards: 1, inject: terminatedTwice},
	{name: "SIGSTOP", cards: 3, inject: suspended},
	{name: "configuration changed", cards: 1, inject: reconfigured},
	{name: "SIGHUP", cards: 1, inject: reloaded},
}}

func killed(_ context.Context, a *arena, random *rand.Rand) error {
	return a.mortal(random).tell(syscall.SIGKILL)
}

func terminated(_ context.Context, a *arena, random *rand.Rand) error {
	return a.mortal(random).tell(syscall.SIGTERM)
}

func terminatedTwice(ctx context.Context, a *arena, random *rand.Rand) error {
	victim := a.mortal(random)
	if err := victim.tell(syscall.SIGTERM); err != nil {
		return err
	}
	linger(ctx, between(random, 0, 200*time.Millisecond))
	return victim.tell(syscall.SIGTERM)
}

// suspended lasts its time even if the storm ends meanwhile.
func suspended(ctx context.Context, a *arena, random *rand.Rand) error {
	life, err := a.any(random).serving()
	if err != nil {
		return err
	}
	if err := life.Send(syscall.SIGSTOP); err != nil {
		return err
	}
	linger(context.WithoutCancel(ctx), between(random, suspension/2, suspension))
	return life.Send(syscall.SIGCONT)
}

func reconfigured(_ context.Context, a *arena, random *rand.Rand) error {
	return a.configuration.limit(4 * (2 + random.IntN(4)))
}

func reloaded(_ context.Context, a *arena, random *rand.Rand) error {
	return a.any(random).tell(syscall.SIGHUP)
}
