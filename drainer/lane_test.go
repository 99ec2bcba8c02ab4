package drainer

import (
	"bytes"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func settlement(claim int64, octets int) Settlement {
	return Settlement{
		Row:    &Row{ClaimID: claim},
		Result: dispatch.Result{Response: bytes.Repeat([]byte("x"), octets)},
	}
}

func TestATurnTakesNoMoreOctetsThanItCanCarry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		octets []int
		limit  int
		want   int
	}{
		"nothing":                          {nil, 10, 0},
		"all that fits":                    {[]int{4, 6}, 10, 2},
		"only what fits":                   {[]int{4, 6, 1}, 10, 2},
		"one that is larger than a turn":   {[]int{11, 1}, 10, 1},
		"bodiless ones cost nothing":       {[]int{0, 0, 0}, 0, 3},
		"a large one waits for the next":   {[]int{1, 50}, 10, 1},
		"order is kept, nothing overtakes": {[]int{9, 5, 1}, 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var settled []Settlement
			for _, octets := range test.octets {
				settled = append(settled, settlement(1, octets))
			}
			if got := len(firstOctets(settled, test.limit)); got != test.want {
				t.Errorf("took %d settlements, want %d", got, test.want)
			}
		})
	}
}

// A claim finished while one of its rows is unsettled would take that row's
// fence away, and with it the row.
func TestAClaimEndsOnlyWithItsLastRow(t *testing.T) {
	t.Parallel()
	l := &lane{remembered: map[int64]int{1: 2, 2: 1, 3: 3}}
	all := []Settlement{settlement(1, 0), settlement(2, 0), settlement(3, 0), settlement(1, 0), settlement(3, 0)}

	if got := l.ended(all[:3]); !slices.Equal(got, []int64{2}) {
		t.Errorf("a turn of three rows ends %v, want only claim 2", got)
	}
	if got := l.ended(all); !slices.Equal(got, []int64{2, 1}) {
		t.Errorf("a turn of five rows ends %v, want claims 2 and 1, and not 3", got)
	}
}
