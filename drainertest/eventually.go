package drainertest

import (
	"testing"
	"time"
)

// Patience bounds every wait for a condition: far above what a slow machine needs.
const Patience = 60 * time.Second

// Eventually returns once the condition holds, and fails the test if it does
// not within [Patience].
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(Patience)
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
