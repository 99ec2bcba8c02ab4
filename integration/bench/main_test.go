// Package bench_test measures the drainer as it runs: the program in a process
// of its own, with its metrics, its log and a durable Postgres.
//
// Most goals are ratios: whoever is compared takes turns with the other one on
// the same machine, each round has its ratio, and the median of those counts.
// Median rates are reported beside them; they are this machine's, the ratio is
// the program's.
// WAL, pick-up, status and memory have no other side.
package bench_test

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// roleVariable says what a process of this binary is to be.
const roleVariable = "BENCH_ROLE"

// roles are what this binary starts itself again as.
var roles = map[string]func() int{
	"drainer":  drainerMain,
	"river":    riverMain,
	"provider": providerMain,
}

func TestMain(m *testing.M) {
	if role, is := roles[os.Getenv(roleVariable)]; is {
		os.Exit(role())
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		shared.stop()
		os.Exit(1)
	}()
	code := m.Run()
	shared.stop()
	os.Exit(code)
}
