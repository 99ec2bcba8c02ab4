package exec

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// starts counts how often a child is started while somebody asks for one as
// soon as the adapter lets them.
func starts(t *testing.T, during time.Duration, launch func(context.Context) (*running, string)) (count int, longestWait time.Duration) {
	children := supervise(func(ctx context.Context) (*running, string) {
		count++
		return launch(ctx)
	})
	for end := time.Now().Add(during); time.Now().Before(end); {
		child, refusal := children.serving(t.Context())
		if child != nil {
			<-child.done
			continue
		}
		if refusal.Outcome != dispatch.NotSent || refusal.ErrorClass == "" {
			t.Fatalf("%+v", refusal)
		}
		longestWait = max(longestWait, refusal.RetryAfter)
		time.Sleep(refusal.RetryAfter)
		synctest.Wait()
	}
	return count, longestWait
}

func TestACrashLoopWaitsLongerAndLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		count, longest := starts(t, time.Hour, func(context.Context) (*running, string) { return nil, "child_start" })
		if count < 120 || count > 500 {
			t.Errorf("%d starts in an hour: the wait should be 15 s on average", count)
		}
		if longest < 20*time.Second || longest > 30*time.Second {
			t.Errorf("the longest wait was %s", longest)
		}
	})
}

func TestAChildThatLivedLongIsReplacedSoon(t *testing.T) {
	t.Parallel()
	for lived, longestAllowed := range map[time.Duration]time.Duration{time.Minute: time.Second / 2, time.Second: 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			_, longest := starts(t, time.Hour, func(context.Context) (*running, string) {
				child := &running{done: make(chan struct{})}
				time.AfterFunc(lived, func() { close(child.done) })
				return child, ""
			})
			if longest > longestAllowed || longest < longestAllowed/2 {
				t.Errorf("after %s a child is waited for up to %s, not %s", lived, longest, longestAllowed)
			}
		})
	}
}
