package http

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// ruleSets claim all that a rule may claim, for responses that justify it and for others.
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
	judges := newJudges(t)
	rapid.Check(t, func(t *rapid.T) {
		by := judge{rapid.SampledFrom(slices.Sorted(maps.Keys(profiles))).Draw(t, "profile"), rapid.SampledFrom(ruleSets).Draw(t, "rules")}
		checkVerdict(t, judges[by], by, anyResponse(t))
	})
}

func FuzzNoResponseIsTakenForMoreThanItProves(f *testing.F) {
	for _, seed := range []struct {
		status       int
		header, body string
	}{
		{200, "", ""},
		{204, "Content-Type: application/json", "null"},
		{200, "Content-Type: application/json", `{"ok": false, "error": "ratelimited"}`},
		{200, "Content-Type: application/json", `{"ok": true, "ok": false}`},
		{200, "Content-Type: application/json", `{"data": []}{`},
		{200, "Content-Type: application/json", strings.Repeat("[", 12000)},
		{302, "Location: http://169.254.169.254/", ""},
		{403, "X-Ratelimit-Remaining: 0\nX-Ratelimit-Reset: 1e999\nDate: Tue, 01 Jan 2030 12:00:00 GMT", `{"message": "API Rate Limit"}`},
		{409, "Retry-After: -5", ""},
		{409, "Content-Type: application/problem+json", `{"title": "IN-FLIGHT", "retry_after": -1e309}`},
		{409, "Content-Type: application/json", `{"name": "concurrent_idempotent_requests"}`},
		{425, "", ""},
		{500, "Idempotent-Replayed: true\nStripe-Should-Retry: false", `{"wait": 9223372036854775808}`},
		{503, "Retry-After: 9223372036854775808\nStripe-Should-Retry: TRUE", ""},
		{529, "Retry-After: Tue, 01 Jan 1980 12:00:00 GMT", "\xff\x00"},
	} {
		for profile := range len(profiles) {
			f.Add(byte(profile), byte(profile), seed.status, seed.header, []byte(seed.body))
		}
	}
	judges := newJudges(f)
	f.Fuzz(func(t *testing.T, profile, rules byte, status int, header string, body []byte) {
		if status < 100 || status > 999 {
			return // net/http never delivers these
		}
		by := judge{slices.Sorted(maps.Keys(profiles))[int(profile)%len(profiles)], ruleSets[int(rules)%len(ruleSets)]}
		response := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
		for line := range strings.Lines(header) {
			name, value, _ := strings.Cut(line, ":")
			response.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		}
		checkVerdict(t, judges[by], by, response)
	})
}

// outcomes are the outcomes that an adapter may find in a response.
var outcomes = []dispatch.Outcome{
	dispatch.Completed, dispatch.Throttled, dispatch.Rejected, dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.InFlight, dispatch.Ambiguous, dispatch.Absent,
}

var className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// judge names the profile and the rules that judge a response.
type judge struct{ profile, rules string }

func newJudges(t testing.TB) map[judge]*tool {
	t.Helper()
	judges := map[judge]*tool{}
	for profile := range profiles {
		for _, rules := range ruleSets {
			adapter, err := New(dispatch.Spec{
				Settings: dispatchtest.Block("base_url: http://localhost\nmax_response_body: 64\nprofile: '" + profile + "'"),
				Tools: map[string]dispatch.ToolSpec{"act": {
					Class:    dispatch.ReadOnly,
					Settings: dispatchtest.Block("{path: /, response: {ref: .id, rules: " + rules + "}}"),
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			judges[judge{profile, rules}] = adapter.tools["act"]
		}
	}
	return judges
}

// checkVerdict compares the verdict on a response with the response itself.
func checkVerdict(t rapid.TB, judging *tool, by judge, response *http.Response) {
	body, _ := io.ReadAll(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	got := judging.judge(context.Background(), response)

	status := response.StatusCode
	switch completed := got.Outcome == dispatch.Completed; {
	case !slices.Contains(outcomes, got.Outcome):
		t.Errorf("%s is none of an adapter's outcomes", got.Outcome)
	case completed && (status < 200 || status > 499):
		t.Errorf("a %d completed it", status)
	case completed && by.rules == "[]" && status > 299:
		t.Errorf("a %d completed it, and no rule said so", status)
	case completed && len(body) > 64:
		t.Errorf("a body that was not read completed it")
	case completed && by.profile == "slack" && by.rules == "[]" && status == 200 && !saysOK(body):
		t.Errorf("Slack did not say ok: %s", body)
	case got.Outcome == dispatch.Absent && (status < 200 || status > 410):
		t.Errorf("a %d proved absence", status)
	case got.Outcome == dispatch.Absent && status == 200 && !json.Valid(body):
		t.Errorf("%q proved absence", body)
	case got.Final && got.Outcome != dispatch.Ambiguous:
		t.Errorf("%s is final", got.Outcome)
	case completed != (got.ErrorClass == "") || got.ErrorClass != "" && !className.MatchString(got.ErrorClass):
		t.Errorf("%s with error class %q", got.Outcome, got.ErrorClass)
	case got.RetryAfter < 0 || got.RetryAfter > evidence.LongestWait:
		t.Errorf("retry after %s", got.RetryAfter)
	case !completed && got.RetryAfter < evidence.RetryAfter(response.Header, evidence.DateOf(response.Header, time.Now())):
		t.Errorf("retry after %s, earlier than the header says", got.RetryAfter)
	case status >= 500 && got.Replayed && !got.Final && got.Outcome != dispatch.Rejected && response.Header.Get("Stripe-Should-Retry") != "true":
		t.Errorf("a saved %d is tried again: %+v", status, got)
	case got.Response != nil && !json.Valid(got.Response):
		t.Errorf("what is kept is no JSON: %q", got.Response)
	}
}

func saysOK(body []byte) bool {
	var answer map[string]any
	return json.Unmarshal(body, &answer) == nil && answer["ok"] == true
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
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(raw []byte) string { return string(raw) }),
	).Draw(t, "body")
	status := rapid.OneOf(rapid.SampledFrom([]int{200, 202, 302, 400, 403, 404, 409, 410, 422, 425, 429, 500, 503, 529}), rapid.IntRange(100, 999)).Draw(t, "status")
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body))}
}

func problemAnswer(body string) *answer {
	return &answer{status: 400, header: http.Header{"Content-Type": {"application/problem+json; charset=utf-8"}}, body: []byte(body)}
}

func TestProblemDetailsAreKept(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 2000)
	for name, test := range map[string]struct {
		body string
		want *dispatch.Problem
		wait time.Duration
	}{
		"whole":               {`{"type":"https://e.com/p","title":"T","status":400,"detail":"D","instance":"/i"}`, &dispatch.Problem{Type: "https://e.com/p", Title: "T", Detail: "D"}, 0},
		"partial":             {`{"detail":"D"}`, &dispatch.Problem{Detail: "D"}, 0},
		"wrong types":         {`{"type":1,"title":["T"],"detail":{"a":1}}`, nil, 0},
		"one wrong type":      {`{"type":null,"title":true,"detail":"D"}`, &dispatch.Problem{Detail: "D"}, 0},
		"other capitals":      {`{"Title":"T"}`, nil, 0},
		"NUL":                 {`{"title":"a\u0000b"}`, &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"lone surrogate":      {`{"title":"a\ud800b"}`, &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"bad UTF-8":           {"{\"title\":\"a\xffb\"}", &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"huge":                {`{"type":"` + long + `","title":"` + long + `","detail":"` + long + `"}`, &dispatch.Problem{Type: long, Title: long, Detail: long}, 0},
		"array":               {`[{"title":"T"}]`, nil, 0},
		"text":                {`"T"`, nil, 0},
		"null":                {`null`, nil, 0},
		"empty":               {``, nil, 0},
		"cut short":           {`{"title":"T"`, nil, 0},
		"two values":          {`{"title":"T"}{}`, nil, 0},
		"deep":                {`{"title":"T","x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, nil, 0},
		"retry_after":         {`{"title":"T","retry_after":30}`, &dispatch.Problem{Title: "T"}, 30 * time.Second},
		"retry_after, half":   {`{"retry_after":0.5}`, nil, 500 * time.Millisecond},
		"retry_after, past":   {`{"retry_after":-5}`, nil, 0},
		"retry_after, huge":   {`{"retry_after":1e300}`, nil, evidence.LongestWait},
		"retry_after, huger":  {`{"retry_after":1e999}`, nil, evidence.LongestWait},
		"retry_after, quoted": {`{"retry_after":"30"}`, nil, 0},
	} {
		details := problemDetails(problemAnswer(test.body))
		if got := details.problem(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %.200v, want %.200v", name, got, test.want)
		}
		if got := details.retryAfter(); got != test.wait {
			t.Errorf("%s: retry after %s, want %s", name, got, test.wait)
		}
	}
}

func TestOnlyProblemJSONIsReadAsAProblem(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "application/json", "text/plain", "application/problem+xml", "application/problem+json; ="} {
		a := problemAnswer(`{"title":"T"}`)
		a.header.Set("Content-Type", contentType)
		if got := problemDetails(a).problem(); got != nil {
			t.Errorf("%q: %v", contentType, got)
		}
	}
}

func FuzzProblemDetailsAreStorableText(f *testing.F) {
	for _, seed := range []string{
		`{"type":"t","title":"T","detail":"D","retry_after":3}`, `{"title":"\u0000\ud800"}`, "{\"title\":\"\xff\"}",
		`{"retry_after":-1e309}`, `{"retry_after":9223372036854775808}`, `{"retry_after":0.0000000001}`, `{"retry_after":9e99,"retry_after":"1"}`, `[]`, `{"title":{}}`, `{"title":"a","title":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		details := problemDetails(problemAnswer(string(body)))
		wait := details.retryAfter()
		var said map[string]any
		_ = json.Unmarshal(body, &said)
		seconds, _ := said["retry_after"].(float64)
		if wait < 0 || wait > evidence.LongestWait || wait.Seconds() < min(seconds, evidence.LongestWait.Seconds()) {
			t.Errorf("retry after %s", wait)
		}
		problem := details.problem()
		if problem == nil {
			return
		}
		if *problem == (dispatch.Problem{}) {
			t.Error("an empty problem is kept")
		}
		for _, kept := range []string{problem.Type, problem.Title, problem.Detail} {
			if !utf8.ValidString(kept) || strings.ContainsRune(kept, 0) {
				t.Errorf("kept %q", kept)
			}
		}
		if _, err := json.Marshal(problem); err != nil {
			t.Error(err)
		}
	})
}
