package bench_test

import "slices"

const (
	// rounds is how often each contender runs.
	rounds = 5
	// manyRounds are for what differs more from one to the next.
	manyRounds = 11
)

// series is what one contender came to in each round.
type series []float64

// race lets the contenders take turns.
func race(rounds int, contenders ...func() float64) []series {
	results := make([]series, len(contenders))
	for range rounds {
		for i, run := range contenders {
			results[i] = append(results[i], run())
		}
	}
	return results
}

func (s series) median() float64 { return quantile(s, 0.5) }

// times is the median of how many times the other one's result each round's was.
// A machine that others share is not as fast in one second as in the next; who ran
// in the same round met nearly the same one.
func (s series) times(other series) float64 {
	ratios := make(series, len(s))
	for round := range s {
		ratios[round] = s[round] / other[round]
	}
	return ratios.median()
}

// quantile is the sample below which that share of them lies.
func quantile(samples []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}
