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
	ctx, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks to finish; with the default restored, the second kills.
	context.AfterFunc(ctx, restore)
	os.Exit(execute(ctx, newRoot(), os.Args[1:]))
}
