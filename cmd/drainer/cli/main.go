// Package cli is the program: one file a command. It knows every other package
// and is known by a main function alone, drainer's own or that of a program
// with adapters of its own.
package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/agentoutbox/drainer/dispatch"
)

// Main runs the command line with these adapters, and returns the exit code.
func Main(kinds ...dispatch.Kind) int {
	registry, err := dispatch.NewRegistry(kinds...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "drainer: %s; correct the main function of this program\n", err)
		return exitUsage
	}
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		// The first signal asks to finish. With the default back before anybody
		// can notice, the second one kills.
		signal.Stop(signals)
		stop()
	}()
	options := newOptions(registry)
	options.hangups = hangups
	return execute(ctx, rootOf(options), os.Args[1:])
}

// hangups listens for SIGHUP, which ends a program that does not listen.
func hangups() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals
}
