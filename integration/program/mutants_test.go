package program

import "testing"

// The code moves on under the mutants; what they break must still be there.
func TestEachMutantStillBreaksWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, mutant := range Mutants {
		if _, err := overlayOf(t.TempDir(), mutant.Name); err != nil {
			t.Error(err)
		}
	}
}
