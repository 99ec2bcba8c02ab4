package nemesis_test

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// chronicle counts what was broken, and remembers the last of it.
type chronicle struct {
	mu     sync.Mutex
	begun  time.Time // the storm
	counts map[string]int
	last   []string
}

const remembered = 150

func newChronicle() *chronicle {
	return &chronicle{begun: time.Now(), counts: map[string]int{}}
}

// begin starts the clock.
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

// note writes down a fault, and what there is to be said of it; one that could
// not be injected is not counted.
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
