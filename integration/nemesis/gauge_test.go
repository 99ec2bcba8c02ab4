package nemesis_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainertest"
)

// sample is one daemon's use of the machine at one time.
type sample struct {
	MiB         int // resident
	Goroutines  int
	Files       int // descriptors
	Connections int // to the database
}

// gauge samples the whole fleet every second.
type gauge struct {
	arena *arena

	mu     sync.Mutex
	series map[string][]sample // by replica
}

func newGauge(a *arena) *gauge {
	return &gauge{arena: a, series: map[string][]sample{}}
}

func (g *gauge) run(ctx context.Context) {
	for ctx.Err() == nil {
		g.read(ctx)
		linger(ctx, time.Second)
	}
}

// read skips replicas that do not answer now.
func (g *gauge) read(ctx context.Context) {
	connections, err := g.connections(ctx)
	if err != nil {
		return
	}
	for _, replica := range g.arena.fleet {
		taken, err := take(replica)
		if err != nil {
			continue
		}
		taken.Connections = connections[replica.name]
		g.mu.Lock()
		g.series[replica.name] = append(g.series[replica.name], taken)
		g.mu.Unlock()
	}
}

func (g *gauge) connections(ctx context.Context) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := g.arena.DB.Query(ctx, `SELECT application_name, count(*) FROM pg_stat_activity WHERE application_name LIKE 'replica-%' GROUP BY 1`)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	var name string
	var count int
	_, err = pgx.ForEachRow(rows, []any{&name, &count}, func() error {
		counts[name] = count
		return nil
	})
	return counts, err
}

// take reads the metrics of a daemon.
func take(r *replica) (sample, error) {
	metrics, err := r.metrics()
	if err != nil {
		return sample{}, err
	}
	return sample{
		MiB:        value(metrics, "process_resident_memory_bytes") >> 20,
		Goroutines: value(metrics, "go_goroutines"),
		Files:      value(metrics, "process_open_fds"),
	}, nil
}

// value returns the value of a metric without labels.
func value(metrics, name string) int {
	_, after, _ := strings.Cut(metrics, "\n"+name+" ")
	line, _, _ := strings.Cut(after, "\n")
	number, _ := strconv.ParseFloat(line, 64)
	return int(number)
}

// median returns the median of each column in a window of a replica's samples. from and to are fractions of all
// samples.
func (g *gauge) median(replica string, from, to float64) sample {
	g.mu.Lock()
	defer g.mu.Unlock()
	series := g.series[replica]
	window := series[int(from*float64(len(series))):int(to*float64(len(series)))]
	if len(window) == 0 {
		return sample{}
	}
	middle := func(column func(sample) int) int {
		values := make([]int, len(window))
		for i, sample := range window {
			values[i] = column(sample)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return sample{
		middle(func(s sample) int { return s.MiB }), middle(func(s sample) int { return s.Goroutines }),
		middle(func(s sample) int { return s.Files }), middle(func(s sample) int { return s.Connections }),
	}
}

func (g *gauge) mostMiB() (most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, series := range g.series {
		if len(series) > 0 {
			most = max(most, slices.MaxFunc(series, func(a, b sample) int { return cmp.Compare(a.MiB, b.MiB) }).MiB)
		}
	}
	return most
}

// enough is far more than a daemon at rest uses. A daemon with the race detector uses several times the usual memory.
var enough = sample{MiB: 400, Goroutines: 600, Files: 300, Connections: 40}

// exceeds names each column in which the sample is larger than most.
func (s sample) exceeds(most sample) (what []string) {
	for name, pair := range map[string][2]int{
		"MiB": {s.MiB, most.MiB}, "goroutines": {s.Goroutines, most.Goroutines},
		"files": {s.Files, most.Files}, "connections": {s.Connections, most.Connections},
	} {
		if pair[0] > pair[1] {
			what = append(what, fmt.Sprintf("%d %s, want at most %d", pair[0], name, pair[1]))
		}
	}
	return what
}

// assertBounded checks the present state of the fleet.
func (g *gauge) assertBounded(t testing.TB) {
	t.Helper()
	connections, err := g.connections(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, replica := range g.arena.fleet {
		var now sample
		drainertest.Eventually(t, replica.name+" reports what it takes", func() bool {
			now, err = take(replica)
			return err == nil && now.MiB > 0
		})
		now.Connections = connections[replica.name]
		t.Logf("%s at rest: %+v", replica.name, now)
		for _, excess := range now.exceeds(enough) {
			t.Errorf("%s at rest has %s", replica.name, excess)
		}
	}
}

// assertNoGrowth compares the last fifth of the enduring daemon's samples with an early fifth. It allows for normal
// variation.
func (g *gauge) assertNoGrowth(t testing.TB) {
	t.Helper()
	for _, replica := range g.arena.fleet {
		if !replica.endures {
			continue
		}
		early, late := g.median(replica.name, 0.1, 0.3), g.median(replica.name, 0.8, 1)
		t.Logf("%s early: %+v, late: %+v", replica.name, early, late)
		most := sample{early.MiB*3/2 + 32, early.Goroutines*3/2 + 50, early.Files*3/2 + 20, early.Connections*3/2 + 5}
		for _, excess := range late.exceeds(most) {
			t.Errorf("%s has grown to %s", replica.name, excess)
		}
	}
}

// chronicle counts the injected faults, and remembers the last ones.
type chronicle struct {
	mu     sync.Mutex
	begun  time.Time // start of the storm
	counts map[string]int
	last   []string
}

const remembered = 150

func newChronicle() *chronicle {
	return &chronicle{begun: time.Now(), counts: map[string]int{}}
}

// begin sets the start of the storm.
func (c *chronicle) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = time.Now()
}

func (c *chronicle) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.begun).Round(time.Second)
}

// note records a fault with its details. A fault that could not be injected is not counted.
func (c *chronicle) note(fault, detail string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := fmt.Sprintf("%6.1fs %s %s", time.Since(c.begun).Seconds(), fault, detail)
	if err != nil {
		entry += ": not now: " + err.Error()
	} else {
		c.counts[fault]++
	}
	c.last = append(c.last, entry)
	c.last = c.last[max(0, len(c.last)-remembered):]
}

func (c *chronicle) count(fault string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[fault]
}

func (c *chronicle) total() (total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, count := range c.counts {
		total += count
	}
	return total
}

func (c *chronicle) print(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, entry := range c.last {
		t.Log(entry)
	}
}
