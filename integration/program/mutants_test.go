package program

import "testing"

// The code changes over time. The guard that each mutant removes must still be there.
func TestEachMutantStillBreaksWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, mutant := range Mutants {
		if _, err := overlayOf(t.TempDir(), mutant.Name); err != nil {
			t.Error(err)
		}
	}
}
