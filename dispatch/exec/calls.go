package exec

import (
	"strconv"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// maxAbandoned bounds how many requests a child may have left unanswered.
const maxAbandoned = 1000

// calls are the requests that a child has not answered yet, by their ids. An
// id is used once in a child's life, so a late answer finds nobody else's
// request.
type calls struct {
	mu        sync.Mutex
	last      uint64
	waiting   map[string]chan answer // nil where nobody waits any more
	abandoned int
	closed    bool
	heard     time.Time
}

// answer is what came of a request: a result, or why there is none.
type answer struct {
	result protocol.Result
	class  string
}

func (a answer) evidence(class dispatch.Class) dispatch.Result {
	if a.class != "" {
		return ambiguous(a.class)
	}
	return a.result.Evidence(class)
}

func newCalls() *calls { return &calls{waiting: map[string]chan answer{}} }

// begin reports false where the child takes no more requests. Just one answer
// comes, unless the call is forgotten or abandoned before.
func (c *calls) begin() (id string, answers <-chan answer, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return "", nil, false
	}
	c.last++
	id = strconv.FormatUint(c.last, 10)
	waiting := make(chan answer, 1)
	c.waiting[id] = waiting
	return id, waiting, true
}

// forget is for a request that the child cannot have read.
func (c *calls) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// abandon is for a request that nobody waits for any more; its answer will be
// dropped. It reports false where the answer is there.
func (c *calls) abandon(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, unanswered := c.waiting[id]; !unanswered {
		return false
	}
	c.waiting[id] = nil
	c.abandoned++
	return true
}

func (c *calls) tooManyAbandoned() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandoned > maxAbandoned
}

func (c *calls) heardSince(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heard.After(since)
}

// settle takes an answer to who waits for it. It reports false for one to
// nothing that was asked, or that was answered before. An answer that breaks
// the protocol otherwise leaves its own request in doubt and no other.
func (c *calls) settle(line []byte) bool {
	result, err := protocol.ParseResult(line)
	settled := answer{result: result}
	if err != nil {
		settled.class = "invalid_result"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting, asked := c.waiting[result.ID]
	if !asked {
		return false
	}
	c.heard = time.Now()
	delete(c.waiting, result.ID)
	if waiting == nil {
		c.abandoned--
	} else {
		waiting <- settled
	}
	return true
}

// close begins no more calls.
func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// fail tells everybody that no answer will come.
func (c *calls) fail(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, waiting := range c.waiting {
		delete(c.waiting, id)
		if waiting != nil {
			waiting <- answer{class: class}
		}
	}
}
