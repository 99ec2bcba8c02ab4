package http_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/fault"
)

func TestTheStatusDecides(t *testing.T) {
	t.Parallel()
	const problem = "application/problem+json"
	for _, test := range []struct {
		status      int
		contentType string
		retryAfter  string
		body        string
		want        dispatch.Outcome
		wait        time.Duration
	}{
		{status: 200, want: dispatch.Completed},
		{status: 201, body: `{"id":"x"}`, contentType: "application/json", want: dispatch.Completed},
		{status: 204, want: dispatch.Completed},
		{status: 400, want: dispatch.Rejected},
		{status: 401, want: dispatch.Rejected},
		{status: 404, want: dispatch.Rejected},
		{status: 408, want: dispatch.Ambiguous},
		{status: 409, want: dispatch.Rejected},
		{status: 409, retryAfter: "2", want: dispatch.InFlight, wait: 2 * time.Second},
		{status: 409, contentType: problem, body: `{"title":"A request is outstanding for this Idempotency-Key"}`, want: dispatch.InFlight},
		{status: 409, contentType: problem, body: `{"title":"Conflict","code":"idempotency_key_in_use"}`, want: dispatch.InFlight},
		{status: 409, contentType: problem, body: `{"title":"This key was used with another payload"}`, want: dispatch.Rejected},
		{status: 422, want: dispatch.Rejected},
		{status: 425, want: dispatch.InFlight},
		{status: 429, retryAfter: "3", want: dispatch.Throttled, wait: 3 * time.Second},
		{status: 500, want: dispatch.Ambiguous},
		{status: 502, want: dispatch.Ambiguous},
		{status: 503, want: dispatch.Throttled},
		{status: 504, want: dispatch.Ambiguous},
		{status: 529, want: dispatch.Throttled},
	} {
		t.Run(strconv.Itoa(test.status), func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.contentType)
				if test.retryAfter != "" {
					w.Header().Set("Retry-After", test.retryAfter)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			defer server.Close()
			got := newAdapter(t, spec(server.URL, "", "path: /")).Dispatch(t.Context(), request(`{}`))
			if slices.Contains([]int{409, 422, 429, 503}, test.status) {
				fault.Injected(t, 41, 1)
			}
			if got.Outcome != test.want || got.HTTPStatus != test.status || got.RetryAfter != test.wait {
				t.Errorf("got %+v, want %s after %s", got, test.want, test.wait)
			}
			if completed := got.Outcome == dispatch.Completed; completed != (got.ErrorClass == "") {
				t.Errorf("outcome %s with error class %q", got.Outcome, got.ErrorClass)
			}
		})
	}
}

func TestAResponseIsCaptured(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Request-Id", "req_1")
		w.Header().Set("X-Other", "no")
		w.Header().Set("Idempotency-Replay", "True")
		_, _ = io.WriteString(w, `{"b": 1, "a": {"id": 9007199254740993}}`)
	}))
	t.Cleanup(server.Close)
	adapter := newAdapter(t, spec(server.URL, "capture_headers: [request-id, x-absent]", "{path: /, response: {ref: .a.id}}"))
	got := adapter.Dispatch(t.Context(), request(`{}`))
	if string(got.Response) != `{"b": 1, "a": {"id": 9007199254740993}}` {
		t.Errorf("response is not stored as it came: %s", got.Response)
	}
	if got.ProviderRef != "9007199254740993" {
		t.Errorf("reference %q lost precision", got.ProviderRef)
	}
	if len(got.ResponseHeaders) != 1 || got.ResponseHeaders["Request-Id"] != "req_1" {
		t.Errorf("captured headers %v", got.ResponseHeaders)
	}
	if !got.Replayed {
		t.Error("the replay marker was overlooked")
	}
}

func TestTheProvidersWordsForAFailureAreKept(t *testing.T) {
	t.Parallel()
	words := reply{429, map[string]string{"Content-Type": "application/problem+json", "Retry-After": "1"}, `{"type":"https://e.com/limit","title":"Slow down","detail":"Too many","retry_after":30}`}
	tool := dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: block("path: /")}
	got := answer(t, words, "", tool)
	if want := (dispatch.Problem{Type: "https://e.com/limit", Title: "Slow down", Detail: "Too many"}); got.Problem == nil || *got.Problem != want {
		t.Errorf("kept %+v", got.Problem)
	}
	if got.RetryAfter != 30*time.Second {
		t.Errorf("retry after %s, want the longer wait", got.RetryAfter)
	}
	words.status = 200
	if got := answer(t, words, "", tool); got.Problem != nil || got.RetryAfter != 0 {
		t.Errorf("a success has no problem: %+v", got)
	}
}

func TestAnUnknownToolIsNotSent(t *testing.T) {
	t.Parallel()
	unknown := request(`{}`)
	unknown.Tuple.ToolName = "stripe/refund"
	got := newAdapter(t, spec("http://127.0.0.1:1", "", "{path: /}")).Dispatch(t.Context(), unknown)
	if got.Outcome != dispatch.NotSent || got.ErrorClass != "unconfigured_tool" {
		t.Errorf("got %+v", got)
	}
}
