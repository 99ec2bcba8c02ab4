package bench_test

import "testing"

// replicaRounds are many: from one to the next the ratio differs by a tenth.
const replicaRounds = 21

// BenchmarkReplicas drains one queue with several daemons. On a machine that
// one of them keeps busy, more can only get in each other's way.
func BenchmarkReplicas(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		rates := race(replicaRounds,
			func() float64 { return drainTogether(b, jobs, 1) },
			func() float64 { return drainTogether(b, jobs, 2) },
			func() float64 { return drainTogether(b, jobs, 3) },
		)
		b.ReportMetric(rates[0].median(), "rows/s-1")
		b.ReportMetric(rates[1].median(), "rows/s-2")
		b.ReportMetric(rates[2].median(), "rows/s-3")
		b.ReportMetric(rates[1].times(rates[0]), "x-alone-2")
		b.ReportMetric(rates[2].times(rates[0]), "x-alone-3")
	}
	b.ReportMetric(0, "ns/op")
}

func drainTogether(b testing.TB, jobs, replicas int) float64 {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	since := outbox.now()
	daemons := make([]*daemon, replicas)
	for i := range daemons {
		daemons[i] = startDaemon(b, outbox.url, noop("sim"))
	}
	outbox.enqueue(jobs, noop("sim"))
	awaitCompleted(jobs, daemons...)
	for _, daemon := range daemons {
		daemon.end()
	}
	return outbox.attemptsPerSecond(since)
}
