// Package integration_test runs whole daemons, as processes, against a real
// Postgres and a simulated provider, and takes things away from them. Most of it
// starts this binary again as a daemon; in the folders, the program itself runs.
//
//	faults/    each fault of the catalogue, injected on purpose
//	fault/     the catalogue; report/ runs it and prints a table
//	nemesis/   all kinds of faults at random, for a while or for an hour
//	bench/     the daemon against River and a bare client; goals/ judges the figures
//	world/     what a fault is injected into: outbox, agents, provider, daemons
//	history/   three accounts of what happened, and the checker that compares them
//	program/   builds and runs drainer: as it ships, with failpoints, or as a mutant
//	cluster/   Postgres servers that may crash, fill up, fail over, mistake the time
//	pgproxy/   loses or keeps back messages between a daemon and Postgres
//	docblock/  code blocks of the documentation, for tests to run
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
