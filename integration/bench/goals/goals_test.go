package main

import (
	"strings"
	"testing"
)

const output = `goos: linux
BenchmarkFast-2   	       1	      9911 rows/s	         4.60 x-other
BenchmarkFast-2   	       1	      9911 rows/s	         6.60 x-other
BenchmarkFast-2   	       1	      9911 rows/s	         6.10 x-other
BenchmarkLate-2   	       1	         0.125 p50-ms
BenchmarkNear-2   	       1	         0.9997 x-one	         0.9861 x-one-from	         1.013 x-one-to
PASS
`

func TestEachGoalIsToldToHoldOrNot(t *testing.T) {
	t.Parallel()
	figures, err := readFigures(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		goal      goal
		says      string
		wantHolds bool
	}{
		"over its stretch":          {goal{"g", "Fast", "x-other", atLeast, 4.5, 6, " ×"}, "| g | ≥ 4.5 × | 6 × | 6.1 × | holds, and stretch |", true},
		"over its gate":             {goal{"g", "Fast", "x-other", atLeast, 4.5, 7, " ×"}, "| 6.1 × | holds |", true},
		"under its gate":            {goal{"g", "Fast", "x-other", atLeast, 6.2, 7, " ×"}, "**does not hold**", false},
		"under what it may be most": {goal{"g", "Late", "p50-ms", atMost, 0.2, 0.1, " ms"}, "| ≤ 0.2 ms | 0.1 ms | 0.12 ms | holds |", true},
		"over what it may be most":  {goal{"g", "Late", "p50-ms", atMost, 0.1, 0.05, " ms"}, "**does not hold**", false},
		"almost its stretch":        {goal{"g", "Near", "x-one", atLeast, 0.9, 1, ""}, "| 0.9997 (0.986 to 1.013) | holds |", true},
		"almost its gate":           {goal{"g", "Near", "x-one", atLeast, 1, 1.1, ""}, "| 0.9997 (0.986 to 1.013) | **does not hold**", false},
		"of another unit":           {goal{"g", "Late", "p99-ms", atMost, 1, 0.5, " ms"}, "**not measured**", false},
		"of another benchmark":      {goal{"g", "Fas", "x-other", atLeast, 1, 2, ""}, "**not measured**", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var table strings.Builder
			if holds := report(&table, []goal{test.goal}, figures); holds != test.wantHolds || !strings.Contains(table.String(), test.says) {
				t.Errorf("holds is %t, want %t, with %q in\n%s", holds, test.wantHolds, test.says, table.String())
			}
		})
	}
}

func TestAGoalIsMetByAllOfThem(t *testing.T) {
	t.Parallel()
	figures := map[source][]float64{{"Fast", "x"}: {2}}
	both := []goal{{"one", "Fast", "x", atLeast, 1, 2, ""}, {"other", "Fast", "x", atLeast, 3, 4, ""}}
	if report(&strings.Builder{}, both, figures) {
		t.Error("one goal does not hold, and the report says that all do")
	}
}

func TestOnlyWhatRanIsAskedFor(t *testing.T) {
	t.Parallel()
	const output = "BenchmarkEnqueue-2 1 100 tx/s 0.7 x-insert\n"
	for chosen, want := range map[string]bool{"Enqueue": true, "Enqueue|Status": false, ".": false} {
		if hold, err := run(strings.NewReader(output), &strings.Builder{}, chosen); err != nil || hold != want {
			t.Errorf("-bench %s: hold is %t (%v), want %t", chosen, hold, err, want)
		}
	}
}
