package exec

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// Whatever octets a child writes, each request gets just one answer, and is
// completed only by a line that says so of it.
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
		for range asked % 8 {
			id, answers, _ := calls.begin()
			waiting[id] = answers
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
		calls.fail(died)
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

// says reports whether a whole line is a result of the request.
func says(text []byte, id, outcome string) bool {
	for line := range bytes.Lines(text) {
		var result map[string]any
		if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &result) == nil && result["id"] == id && result["outcome"] == outcome {
			return true
		}
	}
	return false
}
