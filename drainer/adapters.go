package drainer

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// closeAdapters closes those that hold anything, all at once, and waits a while
// for them. One that is still called, because it ignores that its time is over,
// stays open: an adapter is closed after its last call returned, or never.
func closeAdapters(providers []Provider, isBusy func(provider string) bool, log *slog.Logger) {
	var closing sync.WaitGroup
	for _, provider := range providers {
		log := log.With("provider", provider.Name)
		closer, closes := provider.Adapter.(io.Closer)
		switch {
		case !closes:
		case isBusy(provider.Name):
			log.Warn("the adapter is still called although its time is over; it is not closed")
		default:
			closing.Go(func() { closeAdapter(closer, log) })
		}
	}
	closed := make(chan struct{})
	go func() {
		closing.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(settleGrace):
		log.Warn("closing the adapters takes long; going on without waiting for it")
	}
}

// closeAdapter logs no adapter's own words: they could show an address.
func closeAdapter(closer io.Closer, log *slog.Logger) {
	defer func() {
		if cause := recover(); cause != nil {
			log.Error("adapter panicked while it was closed", "panic_type", fmt.Sprintf("%T", cause))
		}
	}()
	if err := closer.Close(); err != nil {
		log.Warn("the adapter could not be closed in order", "error_type", fmt.Sprintf("%T", err))
	}
}
