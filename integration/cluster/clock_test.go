package cluster_test

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/cluster"
)

func TestAServersClockGoesWhereItIsSet(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	for _, off := range []time.Duration{0, time.Hour, -13 * time.Hour} {
		clock.SetOff(off)
		shown := cluster.Ask[time.Time](t, server, `SELECT clock_timestamp()`)
		if wrong := time.Until(shown) - off; wrong.Abs() > 10*time.Second {
			t.Errorf("set off by %s the clock is wrong by %s", off, wrong)
		}
	}
}
