package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// NewImpatient is New with all waits cut to the given time.
func NewImpatient(spec dispatch.Spec, patient time.Duration, stderr io.Writer) (*Adapter, error) {
	return build(spec, patience{stalled: patient, silent: patient, leaving: patient, drained: patient}, stderr)
}

// starts counts how often a child is started while the test asks for one as
// soon as the adapter allows it.
func starts(t *testing.T, during time.Duration, launch func(context.Context) (*running, fate)) (count int, longestWait time.Duration) {
	children := supervise(func(ctx context.Context) (*running, fate) {
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
		count, longest := starts(t, time.Hour, func(context.Context) (*running, fate) { return nil, fate{class: "child_start"} })
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
			_, longest := starts(t, time.Hour, func(context.Context) (*running, fate) {
				child := &running{done: make(chan struct{})}
				time.AfterFunc(lived, func() { close(child.done) })
				return child, fate{}
			})
			if longest > longestAllowed || longest < longestAllowed/2 {
				t.Errorf("after %s a child is waited for up to %s, not %s", lived, longest, longestAllowed)
			}
		})
	}
}

// For any bytes that a child writes, each request gets exactly one answer. Only a line that says so of this request
// completes it.
func FuzzAChildAnswersOnlyWhatItWasAsked(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "no JSON\n", `{"id":"1","outcome":"completed"}` + "\n",
		`{"id":"1","outcome":"completed"}` + "\n" + `{"id":"1","outcome":"rejected"}` + "\n",
		`{"id":"2","outcome":"completed"}` + "\n" + `{"id":"1","outcome":"comp`,
		`{"id":"1","outcome":"completed","id":"2"}` + "\n",
		`{"id":"9","outcome":"completed"}` + "\n" + `{"id":"1","outcome":"completed"}` + "\n",
		`{"id":"1","outcome":"completed"}{"id":"2","outcome":"completed"}` + "\n",
		`{"id":"01","outcome":"completed"}` + "\n" + `{"id":1,"outcome":"completed"}` + "\n",
		`{"id":"1","outcome":"lost"}` + "\n" + `{"id":"2","outcome":"in_flight"}` + "\n",
		`{"id":"1","outcome":"completed","response":"` + "\x00\xff" + `"}` + "\r\n",
	} {
		f.Add([]byte(seed), uint8(2), uint8(0))
		f.Add([]byte(seed), uint8(3), uint8(1))
	}
	f.Fuzz(func(t *testing.T, said []byte, asked, abandoned uint8) {
		calls := newCalls()
		waiting := map[string]<-chan answer{}
		for number := range int(asked % 8) {
			id := strconv.Itoa(number + 1)
			waiting[id], _ = calls.begin(id)
		}
		left := strconv.Itoa(int(abandoned))
		if waiting[left] != nil {
			calls.abandon(left)
			delete(waiting, left)
		}
		lines := protocol.Lines(bytes.NewReader(said), 256)
		for lines.Scan() && calls.settle(lines.Bytes()) {
			continue
		}
		calls.fail(fate{class: died})
		for id, answers := range waiting {
			if len(answers) != 1 {
				t.Fatalf("request %s has %d answers", id, len(answers))
			}
			if got := (<-answers).evidence(dispatch.NonIdempotent); got.Outcome == dispatch.Completed && !says(said, id, "completed") {
				t.Errorf("%q completes request %s", said, id)
			}
		}
		if len(calls.waiting) > 0 || calls.abandoned > 1 || calls.abandoned < 0 {
			t.Errorf("%d requests are left, %d of them abandoned", len(calls.waiting), calls.abandoned)
		}
	})
}

// says reports whether a whole line of the text is a result of the request with this outcome.
func says(text []byte, id, outcome string) bool {
	for line := range bytes.Lines(text) {
		var result map[string]any
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &result) == nil && result["id"] == id && result["outcome"] == outcome {
			return true
		}
	}
	return false
}
