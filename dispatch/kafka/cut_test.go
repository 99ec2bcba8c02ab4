package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
)

// fragile is a listener whose connections break after a number of octets,
// read or written, while it is told to.
type fragile struct {
	net.Listener
	on *atomic.Bool
}

func (f fragile) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &fragileConn{Conn: conn, on: f.on, in: rand.N[int64](1500), out: rand.N[int64](1500)}, nil
}

type fragileConn struct {
	net.Conn
	on      *atomic.Bool
	mu      sync.Mutex
	in, out int64 // octets left
}

func (c *fragileConn) Read(octets []byte) (int, error) {
	n, err := c.Conn.Read(octets[:c.allowed(&c.in, len(octets))])
	c.spend(&c.in, n)
	return n, err
}

func (c *fragileConn) Write(octets []byte) (int, error) {
	n, err := c.Conn.Write(octets[:c.allowed(&c.out, len(octets))])
	c.spend(&c.out, n)
	if err == nil && n < len(octets) {
		err = net.ErrClosed
	}
	return n, err
}

// allowed breaks the connection once nothing is left, gently or not.
func (c *fragileConn) allowed(left *int64, wanted int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on.Load() {
		return wanted
	}
	if *left <= 0 {
		if rand.N(2) == 0 {
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		return 0
	}
	return int(min(int64(wanted), *left))
}

func (c *fragileConn) spend(left *int64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.on.Load() {
		*left -= int64(n)
	}
}

// Whatever breaks and whenever: what is said to be stored is, what is said not
// to be is not, and nothing is stored twice.
func TestOutcomesHoldWhereverTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	const intents, atOnce = 600, 8
	breaking := &atomic.Bool{}
	cluster := start(t, kfake.ListenFn(func(network, address string) (net.Listener, error) {
		listener, err := net.Listen(network, address)
		return fragile{listener, breaking}, err
	}))
	adapter := adapterFor(t, cluster)
	breaking.Store(true)

	outcomes := make([]dispatch.Result, intents)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < intents; i = next.Add(1) - 1 {
				outcomes[i] = adapter.Dispatch(t.Context(), intent(fmt.Sprint(i)))
			}
		})
	}
	workers.Wait()
	_ = adapter.Close()
	breaking.Store(false)

	records := map[string]int{}
	for _, record := range stored(t, cluster) {
		records[header(record, "idempotency-key")]++
	}
	seen := map[dispatch.Outcome]int{}
	for i, got := range outcomes {
		there := records[intent(fmt.Sprint(i)).IdempotencyKey]
		seen[got.Outcome]++
		switch {
		case there > 1:
			t.Errorf("intent %d: %d records of one dispatch", i, there)
		case got.Outcome == dispatch.Completed && there != 1:
			t.Errorf("intent %d: completed, but not there", i)
		case got.Outcome != dispatch.Completed && got.Outcome != dispatch.Ambiguous && there != 0:
			t.Errorf("intent %d: %s (%s), but there", i, got.Outcome, got.ErrorClass)
		}
	}
	t.Logf("outcomes: %v", seen)
	if seen[dispatch.Completed] < 10 || seen[dispatch.NotSent] < 10 || seen[dispatch.Ambiguous] < 10 {
		t.Error("too few of a kind; this shows nothing")
	}
}

// The end of a dispatch may come at any moment around the write of its record.
func TestNoRecordFollowsADispatchThatSaidNotSent(t *testing.T) {
	t.Parallel()
	const enough, most = 30, 5000
	cluster := start(t)
	var produced atomic.Int64
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		produced.Add(1)
		return nil, nil, false
	})
	adapter := adapterFor(t, cluster)
	var outcomes []dispatch.Outcome
	seen := map[dispatch.Outcome]int{}
	for i := 0; i < most && min(seen[dispatch.NotSent], seen[dispatch.Ambiguous]) < enough; i++ {
		outcome := dispatchAndLeave(t, adapter, intent(fmt.Sprint(i)))
		outcomes = append(outcomes, outcome)
		seen[outcome]++
	}
	_ = adapter.Close()
	records := map[string]bool{}
	for _, record := range stored(t, cluster) {
		records[header(record, "idempotency-key")] = true
	}
	for i, outcome := range outcomes {
		if outcome == dispatch.NotSent && records[intent(fmt.Sprint(i)).IdempotencyKey] {
			t.Errorf("intent %d: not_sent, but there", i)
		}
	}
	t.Logf("outcomes: %v", seen)
	if min(seen[dispatch.NotSent], seen[dispatch.Ambiguous]) < enough {
		t.Error("too few of a kind; this shows nothing")
	}
	if got := produced.Load(); got > int64(len(outcomes)) {
		t.Errorf("%d Produce requests for %d dispatches", got, len(outcomes))
	}
}

// A broker that takes a connection and says nothing on it keeps no dispatch
// beyond its time, however patient the client is.
func TestADispatchEndsWithItsContextWhereABrokerNeverShakesHands(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // what was never accepted ends with it
	adapter := newAdapter(t, spec([]string{listener.Addr().String()}, "", "topic: "+topic))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	got := adapter.Dispatch(ctx, intent("1"))
	if took := time.Since(began); took > 3*time.Second || got.Outcome != dispatch.NotSent || got.ErrorClass != "timeout" {
		t.Errorf("%+v after %s", got, took)
	}
}
