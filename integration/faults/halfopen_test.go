package faults_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/world"
)

// detected bounds how long a connection that is dead without a word may hold
// anything up.
const detected = 30 * time.Second

// Every connection of the only daemon falls silent, while one of them has locked
// a saga: the daemon must give them up, and Postgres must let go of the saga.
func TestConnectionsThatFallSilentAreGivenUpByBothEnds(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	line := pgproxy.New(t, w.URL)
	daemon := w.Start("DATABASE_URL="+line.Behind(t, w.URL), "DRAINER_FAILPOINTS=saga_locked=hold")
	run := w.NewRun()
	w.Step(run, 1, world.Order)
	w.Step(run, 2, world.Declined)
	stop := w.Agents(everyClass...)
	daemon.WaitFor("failpoint saga_locked hold")

	silent := line.Silence()
	began := time.Now()
	daemon.Signal(syscall.SIGUSR1)
	w.AwaitMoreEffects(20)
	stop()
	w.AwaitRest()
	took := time.Since(began)
	fault.Injected(t, 21, silent)
	w.Check()
	t.Logf("%d connections, %.1f s until nothing was left to do", silent, took.Seconds())
	if took > detected {
		t.Errorf("it took %s until nothing was left to do, want less than %s", took, detected)
	}
}
