// Command drainer carries committed intents from the outbox to their
// providers, once.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
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
	os.Exit(execute(ctx, newRoot(), os.Args[1:]))
}
