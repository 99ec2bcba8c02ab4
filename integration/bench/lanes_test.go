package bench_test

import (
	"fmt"
	"testing"
)

// lanes is how many providers share one daemon and its commits.
const lanes = 50

// BenchmarkLanes splits the same work among many providers that take 32 at a
// time: without idempotency, a lane holds no more than it can send at once.
func BenchmarkLanes(b *testing.B) {
	jobs := rows(b, fullRows)
	small := noops(lanes)
	for i := range small {
		small[i].concurrency, small[i].promise = 32, "class: non_idempotent"
	}
	for b.Loop() {
		rates := race(manyRounds,
			func() float64 { return drain(b, jobs, noop("sim")).rate },
			func() float64 { return drain(b, jobs, small...).rate },
		)
		b.ReportMetric(rates[0].median(), "one-lane-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		b.ReportMetric(rates[1].times(rates[0]), "x-one-lane")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHangingLane looks at what all others drain while one provider
// answers nothing.
func BenchmarkHangingLane(b *testing.B) {
	jobs := rows(b, fullRows/2)
	for b.Loop() {
		rates := race(manyRounds,
			func() float64 { return drainBeside(b, jobs, false) },
			func() float64 { return drainBeside(b, jobs, true) },
		)
		b.ReportMetric(rates[0].median(), "alone-rows/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		b.ReportMetric(rates[1].times(rates[0]), "x-alone")
	}
	b.ReportMetric(0, "ns/op")
}

func noops(n int) []provider {
	providers := make([]provider, n)
	for i := range providers {
		providers[i] = noop(fmt.Sprintf("sim%d", i))
	}
	return providers
}

// drainBeside is the rate of all lanes but one, which has work that hangs, or
// nothing to do.
func drainBeside(b testing.TB, jobs int, hangs bool) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	hanging, others := noop("hanging"), noops(lanes-1)
	hanging.settings = "hangs: true"
	outbox.enqueue(jobs, others...)
	if hangs {
		outbox.enqueue(2*inFlight, hanging)
	}
	since := outbox.now()
	daemon := startDaemon(b, outbox.url, append(others, hanging)...)
	awaitCompleted(jobs, daemon)
	daemon.end()
	return outbox.attemptsPerSecond(since)
}
