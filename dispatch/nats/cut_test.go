package nats_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

// brittle stands between the adapter and a server. Each connection breaks
// after a number of octets in either direction, gently or not.
func brittle(t *testing.T, server string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go carry(near, server)
		}
	}()
	return "nats://" + listener.Addr().String()
}

func carry(near net.Conn, server string) {
	far, err := net.Dial("tcp", server)
	if err != nil {
		_ = near.Close()
		return
	}
	var once sync.Once
	cut := func() {
		once.Do(func() {
			if rand.N(2) == 0 {
				_ = near.(*net.TCPConn).SetLinger(0)
			}
			_ = near.Close()
			_ = far.Close()
		})
	}
	const most = 16000
	go func() {
		_, _ = io.CopyN(far, near, rand.N[int64](most))
		cut()
	}()
	_, _ = io.CopyN(near, far, rand.N[int64](most))
	cut()
}

// Whatever breaks and whenever: what is said to be stored is, what is said not
// to be is not, and nothing is stored twice, not even when it is sent again.
func TestOutcomesHoldWhereverTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	const intents, atOnce = 600, 8
	c := startWithStream(t)
	adapter := newAdapter(t, spec(brittle(t, c.Addr().String()), "", "subject: "+subject))

	outcomes := make([][]dispatch.Outcome, intents)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < intents; i = next.Add(1) - 1 {
				for range 2 {
					got := adapter.Dispatch(t.Context(), intent(fmt.Sprint(i)))
					outcomes[i] = append(outcomes[i], got.Outcome)
				}
			}
		})
	}
	workers.Wait()
	_ = adapter.Close()

	messages := map[string]int{}
	for _, message := range c.stored(t) {
		messages[message.Header.Get("Nats-Msg-Id")]++
	}
	seen := map[dispatch.Outcome]int{}
	for i, attempts := range outcomes {
		there := messages[intent(fmt.Sprint(i)).IdempotencyKey]
		completed, doubtful := false, false
		for _, outcome := range attempts {
			seen[outcome]++
			completed = completed || outcome == dispatch.Completed
			doubtful = doubtful || outcome == dispatch.Ambiguous
		}
		switch {
		case there > 1:
			t.Errorf("intent %d: %d messages", i, there)
		case completed && there != 1:
			t.Errorf("intent %d: completed, but not there", i)
		case !completed && !doubtful && there != 0:
			t.Errorf("intent %d: %v, but there", i, attempts)
		}
	}
	t.Logf("outcomes: %v", seen)
	if seen[dispatch.Completed] < 10 || seen[dispatch.NotSent] < 10 || seen[dispatch.Ambiguous] < 10 {
		t.Error("too few of a kind; this shows nothing")
	}
}
