package sidecar

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

// For any answer of a sidecar, only a result of this request is believed.
func FuzzOnlyAResultOfTheRequestIsBelieved(f *testing.F) {
	for _, seed := range []string{
		`{"id":"7","outcome":"completed"}`, `{"id":"8","outcome":"completed"}`, `{"id":7,"outcome":"completed"}`, `{"outcome":"completed"}`,
		`{"id":"7","outcome":"completed"} trailing`, `{"id":"7","outcome":"lost"}`, `{"id":"7","id":"7","outcome":"completed"}`,
		`<html>it works</html>`, "", "\x00", `{"id":"7","outcome":"completed","response":"` + strings.Repeat("x", 300) + `"}`,
	} {
		f.Add(200, []byte(seed))
		f.Add(202, []byte(seed))
		f.Add(500, []byte(seed))
	}
	a := &Adapter{limit: 256}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		result, doubt := a.judge(t.Context(), "7", &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(body))})
		if doubt != "" {
			if result.ID != "" {
				t.Errorf("in doubt, and believed: %+v", result)
			}
			return
		}
		var said map[string]any
		if err := json.Unmarshal(body, &said); err != nil || status != http.StatusOK || len(body) > a.limit || said["id"] != "7" {
			t.Fatalf("a %d with %q is believed: %v", status, body, err)
		}
		if result.Outcome == dispatch.Completed && said["outcome"] != "completed" {
			t.Errorf("%q completes it", body)
		}
	})
}
