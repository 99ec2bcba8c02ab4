package bench_test

import "slices"

// rounds is how often each contender runs.
const rounds = 5

// medians lets the contenders take turns and returns each one's median.
func medians(contenders ...func() float64) []float64 { return mediansOf(rounds, contenders...) }

// mediansOf is for what each commit's wait for the disk decides: it takes many short
// rounds to even that out.
func mediansOf(rounds int, contenders ...func() float64) []float64 {
	results := make([][]float64, len(contenders))
	for range rounds {
		for i, run := range contenders {
			results[i] = append(results[i], run())
		}
	}
	middles := make([]float64, len(contenders))
	for i := range results {
		middles[i] = quantile(results[i], 0.5)
	}
	return middles
}

// quantile is the sample below which that share of them lies.
func quantile(samples []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}
