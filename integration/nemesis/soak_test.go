package nemesis_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

func TestAnHourOfFaultsLeavesNoTrace(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("SOAK=1h is not set; see make soak")
	}
	seed := rand.Uint64N(1_000_000)
	if os.Getenv("CHAOS_SEED") != "" {
		given := seeds(t)
		if len(given) != 1 {
			t.Fatalf("CHAOS_SEED has %d seeds, and a soak takes one", len(given))
		}
		seed = given[0]
	}
	t.Logf("CHAOS_SEED=%d", seed)
	ordeal(t, seed, lengthFrom(t, "SOAK", time.Hour)).assertNoGrowth(t)
}
