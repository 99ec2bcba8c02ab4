package bench_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkHTTP sends each intent to a server on the same machine, as many at
// once as a client that does nothing else, which is the most that any dispatcher
// could reach. River is faster with more workers than there are connections, so it
// is measured with those as well.
func BenchmarkHTTP(b *testing.B) {
	jobs := rows(b, fullRows/4)
	provider := startProvider(b)
	for b.Loop() {
		rates := race(manyRounds,
			func() float64 { return callBarely(b, provider, jobs) },
			func() float64 { return drain(b, jobs, served("sim", provider)).rate },
			func() float64 { return callFromJobs(newRiverDatabase(b), provider, jobs, inFlight) },
			func() float64 { return callFromJobs(newRiverDatabase(b), provider, jobs, riverMoreWorkers) },
		)
		b.ReportMetric(rates[3].median(), "river-256-workers-rows/s")
		b.ReportMetric(rates[1].times(rates[3]), "x-river-256-workers")
		b.ReportMetric(rates[0].median(), "bare-requests/s")
		b.ReportMetric(rates[1].median(), "rows/s")
		b.ReportMetric(rates[2].median(), "river-rows/s")
		b.ReportMetric(rates[1].times(rates[0]), "x-bare")
		b.ReportMetric(rates[1].times(rates[2]), "x-river")
	}
	b.ReportMetric(0, "ns/op")
}

// callBarely is a plain client with as many requests in flight.
func callBarely(b testing.TB, provider string, requests int) float64 {
	b.Helper()
	client := newClient()
	defer client.CloseIdleConnections()
	body := []byte(payloadText)
	var left atomic.Int64
	left.Store(int64(requests))
	var callers sync.WaitGroup
	started := time.Now()
	for range inFlight {
		callers.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(b.Context(), client, provider, body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	return float64(requests) / time.Since(started).Seconds()
}

func callFromJobs(d *riverDatabase, provider string, jobs, workers int) float64 {
	d.b.Helper()
	defer d.drop()
	d.insert(jobs)
	return d.jobsPerSecond(riverSetup{Jobs: jobs, ProviderURL: provider, MaxWorkers: workers, Connections: riverConnections})
}
