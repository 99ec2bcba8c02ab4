package http

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
)

type text string

func (b text) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

// ruleSets claim all that a rule may claim, with and without a right to it.
var ruleSets = []string{
	"[]",
	"[{when: .status > 0 and .status != 404, outcome: completed}]",
	"[{when: .status == 500, outcome: throttled, retry_after: .body.wait}, {when: .body.ok == false, outcome: rejected}]",
	"[{when: .status >= 300, outcome: absent}, {when: .body.data == null and .status == 200, outcome: absent}]",
	"[{when: .headers.ok | test(\"x\"), outcome: completed}]",
	"[{when: .status == 409, outcome: in_flight}]",
}

func TestNoResponseIsTakenForMoreThanItProves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		profile := rapid.SampledFrom(sortedKeys(profiles)).Draw(t, "profile")
		rules := rapid.SampledFrom(ruleSets).Draw(t, "rules")
		adapter, err := New(dispatch.Spec{
			Settings: text("base_url: http://localhost\nmax_response_body: 64\nprofile: '" + profile + "'"),
			Tools: map[string]dispatch.ToolSpec{"act": {
				Class:    dispatch.ReadOnly,
				Settings: text("{path: /, response: {ref: .id, rules: " + rules + "}}"),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		response := anyResponse(t)
		body, _ := io.ReadAll(response.Body)
		response.Body = io.NopCloser(strings.NewReader(string(body)))
		got := adapter.tools["act"].judge(t.Context(), response)

		status := response.StatusCode
		switch completed := got.Outcome == dispatch.Completed; {
		case !slices.Contains(ruleOutcomes, got.Outcome):
			t.Errorf("%s is none of an adapter's outcomes", got.Outcome)
		case completed && (status < 200 || status > 499):
			t.Errorf("a %d completed it", status)
		case completed && rules == "[]" && status > 299:
			t.Errorf("a %d completed it, and no rule said so", status)
		case completed && len(body) > 64:
			t.Error("a body that was not read completed it")
		case completed && profile == "slack" && rules == "[]" && status == 200 && !strings.Contains(string(body), `"ok":true`):
			t.Errorf("Slack did not say ok: %s", body)
		case got.Outcome == dispatch.Absent && (status < 200 || status > 410):
			t.Errorf("a %d proved absence", status)
		case got.Outcome == dispatch.Absent && status == 200 && !json.Valid(body):
			t.Errorf("%q proved absence", body)
		case got.Final && got.Outcome != dispatch.Ambiguous:
			t.Errorf("%s is final", got.Outcome)
		case completed != (got.ErrorClass == "") || got.ErrorClass != "" && !className.MatchString(got.ErrorClass):
			t.Errorf("%s with error class %q", got.Outcome, got.ErrorClass)
		case got.RetryAfter < 0 || got.RetryAfter > retryafter.Longest:
			t.Errorf("retry after %s", got.RetryAfter)
		case status >= 500 && got.Replayed && !got.Final && got.Outcome != dispatch.Rejected && response.Header.Get("Stripe-Should-Retry") != "true":
			t.Errorf("a saved %d is tried again: %+v", status, got)
		}
	})
}

func anyResponse(t *rapid.T) *http.Response {
	header := http.Header{}
	for name, values := range map[string][]string{
		"Content-Type":          {"application/json", "application/problem+json", "text/html", "\x00"},
		"Retry-After":           {"3", "-1", "9e99", "Tue, 01 Jan 2030 12:00:00 GMT"},
		"Idempotency-Replay":    {"true", "false"},
		"Idempotent-Replayed":   {"TRUE"},
		"Stripe-Should-Retry":   {"true", "false", "maybe"},
		"X-Ratelimit-Remaining": {"0", "1"},
		"X-Ratelimit-Reset":     {"1893499260", "-1", "NaN", "1e400"},
		"Ok":                    {"x", "y"},
		"Date":                  {"Tue, 01 Jan 2030 12:00:00 GMT", "yesterday"},
	} {
		if value := rapid.SampledFrom(append(values, "")).Draw(t, name); value != "" {
			header.Set(name, value)
		}
	}
	body := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "null", "true", "[]", `{}`, `{"ok":true}`, `{"ok":false}`, `{"ok":false,"error":"ratelimited"}`, `{"ok":tr`,
			`{"data":[]}`, `{"wait":1e400}`, `{"wait":"x"}`, `{"title":7,"retry_after":1e9}`, `{"error":{"type":"idempotency_error"}}`,
			`{"name":"concurrent_idempotent_requests"}`, `"` + strings.Repeat("x", 100) + `"`, "{\"id\":\"\xff\\ud800\\u0000\"}",
		}),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(octets []byte) string { return string(octets) }),
	).Draw(t, "body")
	status := rapid.OneOf(rapid.SampledFrom([]int{200, 202, 302, 400, 403, 404, 409, 410, 422, 425, 429, 500, 503, 529}), rapid.IntRange(100, 999)).Draw(t, "status")
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}
}
