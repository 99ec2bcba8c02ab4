package bench_test

import (
	"fmt"
	"testing"
)

// BenchmarkRetries throttles a share of the intents once, and each of them
// comes back for a second attempt.
func BenchmarkRetries(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		wal := map[int]float64{}
		throttled := func(percent int) func() float64 {
			return func() float64 {
				provider := noop("sim")
				provider.settings = fmt.Sprintf("throttled_percent: %d", percent)
				d := drain(b, jobs, provider)
				wal[percent] = d.walPerRow // hardly differs from round to round
				return d.rate
			}
		}
		rates := race(rounds, throttled(0), throttled(10), throttled(50))
		b.ReportMetric(rates[0].median(), "attempts/s-0")
		b.ReportMetric(rates[1].median(), "attempts/s-10")
		b.ReportMetric(rates[2].median(), "attempts/s-50")
		b.ReportMetric(rates[2].times(rates[0]), "x-50-of-0")
		for percent, octets := range wal {
			b.ReportMetric(octets, fmt.Sprintf("WAL-B/row-%d", percent))
		}
	}
	b.ReportMetric(0, "ns/op")
}
