package integration_test

import (
	"testing"
	"time"
)

// patience bounds every wait: far above what a slow machine needs.
const patience = 60 * time.Second

// eventually returns once the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("never happened: %s", what)
		}
	}
}
