package bench_test

import "testing"

// BenchmarkDrain is the outbox's own cost: the providers do nothing. River,
// which does the same work for its jobs, is measured as it comes and without
// two indexes that this work does not need.
func BenchmarkDrain(b *testing.B) {
	jobs := rows(b, fullRows)
	for b.Loop() {
		rates := race(rounds,
			func() float64 { return drain(b, jobs, noop("sim")).rate },
			func() float64 { return workNothing(newRiverDatabase(b), jobs) },
			func() float64 { return workNothing(newRiverDatabase(b).withoutGIN(), jobs) },
		)
		b.ReportMetric(rates[0].median(), "rows/s")
		b.ReportMetric(rates[1].median(), "river-rows/s")
		b.ReportMetric(rates[2].median(), "river-without-gin-rows/s")
		b.ReportMetric(rates[0].times(rates[1]), "x-river")
		b.ReportMetric(rates[0].times(rates[2]), "x-river-without-gin")
	}
	b.ReportMetric(0, "ns/op")
}

// drained is what a whole drain came to.
type drained struct {
	rate      float64 // attempts a second
	walPerRow float64 // octets
}

// drain lets one daemon settle intents of these providers.
func drain(b testing.TB, jobs int, providers ...provider) drained {
	b.Helper()
	outbox := newOutbox(b)
	defer outbox.drop()
	outbox.enqueue(jobs, providers...)
	since, before := outbox.now(), outbox.walPosition()
	daemon := startDaemon(b, outbox.url, providers...)
	awaitCompleted(jobs, daemon)
	daemon.end()
	return drained{
		rate:      outbox.attemptsPerSecond(since),
		walPerRow: (outbox.walPosition() - before) / float64(jobs),
	}
}

func workNothing(d *riverDatabase, jobs int) float64 {
	d.b.Helper()
	defer d.drop()
	d.insert(jobs)
	return d.jobsPerSecond(riverSetup{Jobs: jobs, MaxWorkers: riverWorkers, Connections: riverConnections})
}
