package fault

import (
	"fmt"
	"testing"
)

// Attribute is what a test's report is filed under.
const Attribute = "fault"

// Injected reports that a test met the case so many times, and fails it where
// that is never: what was not broken shows nothing. It is called before the
// checks, so that a case whose check fails counts as injected.
func Injected(t testing.TB, number, times int) {
	t.Helper()
	if _, listed := find(number); !listed {
		t.Fatalf("there is no case %d in the catalogue", number)
	}
	if times <= 0 {
		t.Fatalf("case %d was not injected: the run shows nothing", number)
	}
	t.Attr(Attribute, fmt.Sprintf("%d %d", number, times))
}
