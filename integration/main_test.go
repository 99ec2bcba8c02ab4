// Package integration_test runs whole daemons, as processes, against a real
// Postgres and a simulated provider, and takes things away from them.
package integration_test

import (
	"os"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// TestMain makes the test binary its own daemon: a test starts it again with a
// setup in the environment.
func TestMain(m *testing.M) {
	if encoded, isDaemon := os.LookupEnv(setupVariable); isDaemon {
		os.Exit(daemonMain(encoded))
	}
	drainertest.Main(m)
}
