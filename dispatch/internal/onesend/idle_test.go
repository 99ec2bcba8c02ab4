package onesend

import (
	"net"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// A machine that slept swept nothing, and its clock without leaps stood still.
func TestAConnectionThatWasIdleForTooLongIsNotTaken(t *testing.T) {
	t.Parallel()
	to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })
	for idle, wanted := range map[time.Duration]bool{0: true, idleTimeout - time.Second: true, idleTimeout: false, time.Hour: false} {
		conn, err := net.Dial("tcp", to[len("http://"):])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		rested := newConnection(conn, "there")
		rested.idleAt = time.Now().Round(0).Add(-idle)
		pool := idleConnections{open: []*connection{rested}}
		if taken := pool.take("there"); (taken != nil) != wanted {
			t.Errorf("idle for %s: taken: %t", idle, taken != nil)
		}
	}
}
