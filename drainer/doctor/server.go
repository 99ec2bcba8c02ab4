package doctor

import (
	"context"
	"time"
)

const (
	oldestServer = 14
	newestServer = 18
	farAway      = 20 * time.Millisecond
	roundTrips   = 5
)

func lookAtServer(ctx context.Context, x *examination) ([]Finding, error) {
	var number int
	if err := x.pool.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&number); err != nil {
		return nil, err
	}
	major, minor := number/10_000, number%10_000
	switch {
	case major < oldestServer:
		return []Finding{problem("upgrade it", "PostgreSQL %d.%d; drainer needs %d or later", major, minor, oldestServer)}, nil
	case major > newestServer:
		return []Finding{warning("see whether a later drainer knows it", "PostgreSQL %d.%d is later than what this drainer was tested with, %d", major, minor, newestServer)}, nil
	}
	return []Finding{ok("PostgreSQL %d.%d", major, minor)}, nil
}

// reading is one look at the server's clock: what it said, and when it was
// asked and answered by this machine's.
type reading struct {
	server       time.Time
	asked, heard time.Time
	took         time.Duration
}

func lookAtRoundTrip(ctx context.Context, x *examination) ([]Finding, error) {
	best, err := x.readClock(ctx)
	if err != nil {
		return nil, err
	}
	if best.took > farAway {
		return []Finding{warning("run drainer nearer to the database: every batch waits for it", "a statement takes %s there and back", short(best.took))}, nil
	}
	return []Finding{ok("a statement takes %s there and back", short(best.took))}, nil
}

// readClock returns the quickest of several looks, which errs least.
func (x *examination) readClock(ctx context.Context) (best reading, err error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return best, err
	}
	defer pooled.Release()
	for i := range roundTrips {
		start := time.Now()
		r := reading{asked: x.Now()}
		if err := pooled.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&r.server); err != nil {
			return best, err
		}
		r.heard, r.took = x.Now(), time.Since(start)
		if i == 0 || r.took < best.took {
			best = r
		}
	}
	return best, nil
}

// short rounds to what a person reads.
func short(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}
