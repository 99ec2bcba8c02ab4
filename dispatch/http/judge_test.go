package http_test

import (
	"io"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
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
		{status: 401, want: dispatch.CredentialsRefused},
		{status: 403, want: dispatch.Forbidden},
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
			baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.contentType)
				if test.retryAfter != "" {
					w.Header().Set("Retry-After", test.retryAfter)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			got := newAdapter(t, spec(baseURL, "", "path: /")).Dispatch(t.Context(), request(`{}`))
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
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Request-Id", "req_1")
		w.Header().Set("X-Other", "no")
		w.Header().Set("Idempotency-Replay", "True")
		_, _ = io.WriteString(w, `{"b": 1, "a": {"id": 9007199254740993}}`)
	}))
	adapter := newAdapter(t, spec(baseURL, "capture_headers: [request-id, x-absent]", "{path: /, response: {ref: .a.id}}"))
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

// RFC 8259 lets a reader ignore the byte order mark. Some frameworks write one, or a blank for an empty body.
func TestWhatSomeFrameworksWriteAroundABodyIsNoMistake(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]dispatch.Result{
		"\ufeff{\"id\": \"x\"}": {Outcome: dispatch.Completed, ProviderRef: "x", Response: []byte(`{"id": "x"}`)},
		"\ufeff":                {Outcome: dispatch.Completed},
		" ":                     {Outcome: dispatch.Completed},
		"\r\n":                  {Outcome: dispatch.Completed},
	} {
		baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}))
		got := newAdapter(t, spec(baseURL, "", "{path: /, response: {ref: .id}}")).Dispatch(t.Context(), request(`{}`))
		if got.Outcome != want.Outcome || got.ErrorClass != "" || got.ProviderRef != want.ProviderRef || string(got.Response) != string(want.Response) {
			t.Errorf("%q: got %+v, want %+v", body, got, want)
		}
	}
}

func TestTheProvidersWordsForAFailureAreKept(t *testing.T) {
	t.Parallel()
	words := reply{429, map[string]string{"Content-Type": "application/problem+json", "Retry-After": "1"}, `{"type":"https://e.com/limit","title":"Slow down","detail":"Too many","retry_after":30}`}
	tool := dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block("path: /")}
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

func TestAProvidersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	tool := dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block("{path: /, response: {ref: .id}}")}
	problem := map[string]string{"Content-Type": "application/problem+json"}
	dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
		return answer(t, reply{200, nil, `{"id":"` + words + `"}`}, "", tool)
	})
	dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
		return answer(t, reply{400, problem, `{"type":"` + words + `","title":"` + words + `","detail":"` + words + `"}`}, "", tool)
	})
}

func TestRulesDecide(t *testing.T) {
	t.Parallel()
	type headers = map[string]string
	for _, test := range []struct {
		name  string
		class dispatch.Class
		rules string
		reply reply
		want  dispatch.Result
	}{
		{"by status", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled}]`, reply{status: 420}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "http_420"}},
		{"by header, in lower case", dispatch.KeyIdempotent, `[{when: '.headers["x-state"] == "busy"', outcome: in_flight}]`, reply{409, headers{"X-State": "busy"}, ""}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "http_409"}},
		{"by body", dispatch.KeyIdempotent, `[{when: '.status == 200 and .body.state == "queued"', outcome: in_flight}]`, reply{200, headers{"Content-Type": asJSON}, `{"state":"queued"}`}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "http_200"}},
		{"with a name of its own", dispatch.KeyIdempotent, `[{when: .status == 402, outcome: rejected, error: card_declined}]`, reply{status: 402}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "card_declined"}},
		{"a business refusal by 403", dispatch.KeyIdempotent, `[{when: .status == 403, outcome: rejected}]`, reply{status: 403}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_403"}},
		{"credentials refused by another status", dispatch.KeyIdempotent, `[{when: '.status == 200 and .body.error == "invalid_auth"', outcome: credentials_refused}]`, reply{200, headers{"Content-Type": asJSON}, `{"error":"invalid_auth"}`}, dispatch.Result{Outcome: dispatch.CredentialsRefused, ErrorClass: "http_200"}},
		{"the first that matches", dispatch.KeyIdempotent, `[{when: .status == 410, outcome: rejected}, {when: .status == 409, outcome: completed}, {when: .status == 409, outcome: rejected}]`, reply{status: 409}, dispatch.Result{Outcome: dispatch.Completed}},
		{"null does not match", dispatch.KeyIdempotent, `[{when: .body.done, outcome: rejected}]`, reply{status: 200}, dispatch.Result{Outcome: dispatch.Completed}},
		{"none matches: the status decides", dispatch.KeyIdempotent, `[{when: .status == 1, outcome: completed}]`, reply{status: 500}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},
		{"a refusal made doubtful", dispatch.KeyIdempotent, `[{when: .status == 404, outcome: ambiguous}]`, reply{status: 404}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_404"}},
		{"before the profile and its advice", dispatch.KeyIdempotent, `[{when: .status == 409, outcome: rejected}]`, reply{409, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_409"}},
		{"a lookup that finds nothing", dispatch.ReadOnly, `[{when: ".status == 200 and .body.data == []", outcome: absent}]`, reply{200, headers{"Content-Type": asJSON}, `{"data":[]}`}, dispatch.Result{Outcome: dispatch.Absent, ErrorClass: "absent"}},
		{"a lookup of what is gone", dispatch.ReadOnly, `[{when: .status == 404, outcome: absent}]`, reply{status: 404}, dispatch.Result{Outcome: dispatch.Absent, ErrorClass: "absent"}},

		{"a wait in the body", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled, retry_after: .body.wait}]`, reply{420, headers{"Content-Type": asJSON}, `{"wait":1.5}`}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 1500 * time.Millisecond, ErrorClass: "http_420"}},
		{"the longer wait counts", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled, retry_after: '3'}]`, reply{420, headers{"Retry-After": "9"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 9 * time.Second, ErrorClass: "http_420"}},
		{"a wait that is no number", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled, retry_after: .headers}]`, reply{420, headers{"Retry-After": "9"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 9 * time.Second, ErrorClass: "http_420"}},
		{"a wait below 0", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled, retry_after: '-3'}]`, reply{status: 420}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "http_420"}},
		{"a wait without end", dispatch.KeyIdempotent, `[{when: .status == 420, outcome: throttled, retry_after: infinite}]`, reply{status: 420}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 365 * 24 * time.Hour, ErrorClass: "http_420"}},

		{"a rule that fails", dispatch.KeyIdempotent, `[{when: .body.error.code == "x", outcome: rejected}]`, reply{200, headers{"Content-Type": asJSON}, `["other shape"]`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},
		{"a rule that fails before one that matches", dispatch.KeyIdempotent, `[{when: .body.error.code == "x", outcome: rejected}, {when: .status == 429, outcome: throttled}]`, reply{429, headers{"Content-Type": asJSON}, `[]`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},
		{"a rule that says neither yes nor no", dispatch.KeyIdempotent, `[{when: .status, outcome: rejected}]`, reply{status: 404}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},
		{"a rule that says nothing", dispatch.KeyIdempotent, `[{when: empty, outcome: rejected}]`, reply{status: 404}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},
		{"a rule without end", dispatch.KeyIdempotent, `[{when: last(repeat(true)), outcome: rejected}]`, reply{status: 404}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},
		{"a body cut short", dispatch.KeyIdempotent, `[{when: .status == 404, outcome: rejected}]`, reply{404, headers{"Content-Type": asJSON}, `{"a`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "malformed_body"}},
		{"a body that is too long", dispatch.KeyIdempotent, `[{when: .status == 404, outcome: rejected}]`, reply{404, nil, strings.Repeat("x", 101)}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "body_too_large"}},

		{"no rule makes a 5xx a success", dispatch.KeyIdempotent, `[{when: .status >= 500, outcome: completed}]`, reply{status: 500}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_refused"}},
		{"no rule makes a saved 5xx worth a retry", dispatch.KeyIdempotent, `[{when: .status == 500, outcome: throttled}]`, reply{500, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, ErrorClass: "http_500"}},
		{"a rule that knows a saved 5xx for a refusal", dispatch.KeyIdempotent, `[{when: .status == 500, outcome: rejected}]`, reply{500, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_500"}},
		{"no absence from a 403", dispatch.ReadOnly, `[{when: .status >= 400, outcome: absent}]`, reply{status: 403}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_refused"}},
		{"no absence from a 500", dispatch.ReadOnly, `[{when: .status >= 400, outcome: absent}]`, reply{status: 500}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_refused"}},
		{"no absence from a page", dispatch.ReadOnly, `[{when: '.status == 200 and (.body.data | length) == 0', outcome: absent}]`, reply{200, headers{"Content-Type": "text/html"}, "<html>"}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_refused"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tool := dispatch.ToolSpec{Class: test.class, Settings: dispatchtest.Block("{path: /, response: {rules: " + test.rules + "}}")}
			got := answer(t, test.reply, "profile: stripe\nmax_response_body: 100", tool)
			if got.Outcome != test.want.Outcome || got.Final != test.want.Final || got.RetryAfter != test.want.RetryAfter || got.ErrorClass != test.want.ErrorClass {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// The deadline passed, so the rule has no result.
func TestAnAnswerThatNoRuleWasInTimeForLeavesDoubt(t *testing.T) {
	t.Parallel()
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"slow": "y"}`))
	}))
	slow := `{when: '.body.slow as $y | $y != null and ("x" * 9000 | test("(x?){1000}" + $y))', outcome: rejected}`
	spec := spec(baseURL, "", "{path: /, response: {rules: ["+strings.Repeat(slow+", ", 100)+slow+"]}}")
	spec.Timeout = time.Second
	got := newAdapter(t, spec).Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, got, dispatch.Ambiguous, "timeout")
}

func TestARuleForEveryResponseIsRefusedUnlessItDoubts(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"true", ".status != 201", ".body.ok != true", ".body.error == null", "(.body.data | length) == 0", ".status >= 200"} {
		for outcome, refused := range map[string]bool{"completed": true, "throttled": true, "rejected": true, "absent": true, "in_flight": false, "ambiguous": false} {
			spec := spec("https://api.example.com", "", "")
			spec.Tools["charge"] = dispatch.ToolSpec{
				Class:    dispatch.ReadOnly,
				Settings: dispatchtest.Block("{path: /, response: {rules: [{when: '" + when + "', outcome: " + outcome + "}]}}"),
			}
			_, err := dispatchhttp.New(spec)
			if named := err != nil && strings.Contains(err.Error(), "name the status"); named != refused {
				t.Errorf("%s → %s: %v", when, outcome, err)
			}
		}
	}
}

func TestNoRuleSendsANonIdempotentRequestAgain(t *testing.T) {
	t.Parallel()
	for _, class := range dispatch.Classes() {
		spec := spec("https://api.example.com", "", "")
		spec.Tools["charge"] = dispatch.ToolSpec{Class: class, Settings: dispatchtest.Block("{path: /, response: {rules: [{when: .status == 202, outcome: in_flight}]}}")}
		_, err := dispatchhttp.New(spec)
		if refused := err != nil; refused != (class == dispatch.NonIdempotent) {
			t.Errorf("%s: %v", class, err)
		}
	}
}

func TestAReferenceStaysExactBesideRules(t *testing.T) {
	t.Parallel()
	tool := dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block("{path: /, response: {ref: .id, rules: [{when: .body.id == 1, outcome: rejected}]}}")}
	got := answer(t, reply{200, map[string]string{"Content-Type": asJSON}, `{"id": 9007199254740993}`}, "", tool)
	if got.ProviderRef != "9007199254740993" {
		t.Errorf("reference %q", got.ProviderRef)
	}
}

const findsWires = `{path: /wires, method: GET, response: {ref: ".data[0].id", rules: [{when: ".status == 200 and .body.data == []", outcome: absent}]}}`

func TestAToolThatAnswersLookupsFindsOnlyWhatItCanName(t *testing.T) {
	t.Parallel()
	asJSON := map[string]string{"Content-Type": "application/json"}
	for name, test := range map[string]struct {
		reply reply
		want  dispatch.Result
	}{
		"found":          {reply{200, asJSON, `{"data": [{"id": "w_1"}]}`}, dispatch.Result{Outcome: dispatch.Completed, ProviderRef: "w_1"}},
		"absent":         {reply{200, asJSON, `{"data": []}`}, dispatch.Result{Outcome: dispatch.Absent, ErrorClass: "absent"}},
		"no reference":   {reply{200, asJSON, `{"data": [{}]}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "no_reference"}},
		"another shape":  {reply{200, asJSON, `{"items": []}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "no_reference"}},
		"a wrong path":   {reply{404, asJSON, `{}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_404"}},
		"cannot say now": {reply{status: 503}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "http_503"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, test.reply, "", dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block(findsWires)})
			if got.Outcome != test.want.Outcome || got.ProviderRef != test.want.ProviderRef || got.ErrorClass != test.want.ErrorClass {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAToolThatAnswersLookupsMustSayWhatNothingLooksLike(t *testing.T) {
	t.Parallel()
	_, err := dispatchhttp.New(dispatch.Spec{
		Settings: dispatchtest.Block("base_url: https://bank.example"),
		Tools: map[string]dispatch.ToolSpec{"find": {
			Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block("{path: /wires, method: GET}"),
		}},
	})
	if err == nil || !strings.Contains(err.Error(), "outcome: absent") {
		t.Errorf("%v, want the rule that is missing", err)
	}
}

const (
	asJSON = "application/json"
	sent   = "Tue, 01 Jan 2030 12:00:00 GMT"
)

func TestProfilesUnderstandTheirProviders(t *testing.T) {
	t.Parallel()
	type headers = map[string]string
	for _, test := range []struct {
		name    string
		profile string
		reply   reply
		want    dispatch.Result // its outcome, class, wait, Final and Replayed are compared
	}{
		{"no profile: a 409 that does not say is a refusal", "", reply{409, headers{"Content-Type": asJSON}, `{"error":"exists"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_409"}},
		{"no profile: a 422 is a refusal", "", reply{status: 422}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_422"}},
		{"no profile: a 425 is in flight", "", reply{status: 425}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "http_425"}},
		{"no profile: Stripe's advice is ignored", "", reply{500, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},
		{"no profile: a replay is a success", "", reply{200, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Completed, Replayed: true}},
		{"no profile: a saved 500 is final", "", reply{500, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, Replayed: true, ErrorClass: "http_500"}},
		{"no profile: a saved 503 proves nothing, and is final", "", reply{503, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, Replayed: true, ErrorClass: "http_503"}},
		{"no profile: a saved 429 had no effect", "", reply{429, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, Replayed: true, ErrorClass: "http_429"}},
		{"no profile: a saved 402 is a refusal", "", reply{402, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, Replayed: true, ErrorClass: "http_402"}},

		{"none: a 500 may have acted", "none", reply{status: 500}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},

		{"ietf: 400, the key is missing", "ietf", reply{status: 400}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_400"}},
		{"ietf: 409, the first request is busy", "ietf", reply{status: 409}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "key_in_flight"}},
		{"ietf: 422, the payload is another", "ietf", reply{status: 422}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_422"}},

		{"stripe: success", "stripe", reply{200, headers{"Content-Type": asJSON}, `{"id":"ch_1"}`}, dispatch.Result{Outcome: dispatch.Completed}},
		{"stripe: a replayed success", "stripe", reply{200, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Completed, Replayed: true}},
		{"stripe: the key is in use", "stripe", reply{409, headers{"Content-Type": asJSON}, `{"error":{"code":"idempotency_key_in_use","type":"invalid_request_error"}}`}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "key_in_flight"}},
		{"stripe: a 409 to be tried again", "stripe", reply{409, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "key_in_flight"}},
		{"stripe: a 409 not to be tried again leaves the first request open", "stripe", reply{409, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, ErrorClass: "key_in_flight"}},
		{"stripe: other parameters under the key", "stripe", reply{400, headers{"Content-Type": asJSON}, `{"error":{"type":"idempotency_error"}}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "key_mismatch"}},
		{"stripe: a declined card", "stripe", reply{402, headers{"Content-Type": asJSON}, `{"error":{"type":"card_error"}}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_402"}},
		{"stripe: a refusal to be tried again is none yet", "stripe", reply{400, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "http_400"}},
		{"stripe: a redirect stays a refusal", "stripe", reply{308, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "redirect"}},
		{"stripe: the rate limit", "stripe", reply{429, headers{"Retry-After": "2"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 2 * time.Second, ErrorClass: "http_429"}},
		{"stripe: a 429 not to be tried again is a refusal", "stripe", reply{429, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_429"}},
		{"stripe: a 500 without advice", "stripe", reply{status: 500}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},
		{"stripe: a 500 to be tried again", "stripe", reply{500, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},
		{"stripe: a 500 not to be tried again", "stripe", reply{500, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, ErrorClass: "http_500"}},
		{"stripe: a 503 not to be tried again", "stripe", reply{503, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, ErrorClass: "http_503"}},
		{"stripe: a saved 500", "stripe", reply{500, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, Replayed: true, ErrorClass: "http_500"}},
		{"stripe: a saved 500 that wants a retry", "stripe", reply{500, headers{"Idempotent-Replayed": "true", "Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Replayed: true, ErrorClass: "http_500"}},

		{"resend: the first request is busy", "resend", reply{409, headers{"Content-Type": asJSON}, `{"name":"concurrent_idempotent_requests"}`}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "key_in_flight"}},
		{"resend: the payload is another", "resend", reply{409, headers{"Content-Type": asJSON}, `{"name":"invalid_idempotent_request"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "key_mismatch"}},
		{"resend: a 409 that cannot be read proves nothing", "resend", reply{409, headers{"Content-Type": asJSON}, `{"name":"concurr`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "malformed_body"}},

		{"github: the hourly limit, by 403", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1893499260", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: the hourly limit, by 429", "github", reply{429, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1893499260", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a reset that cannot be read", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rate_limited"}},
		{"github: a reset that is past", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rate_limited"}},
		{"github: the secondary limit, with Retry-After", "github", reply{403, headers{"Retry-After": "30"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 30 * time.Second, ErrorClass: "rate_limited"}},
		{"github: the secondary limit, in words", "github", reply{403, headers{"Content-Type": asJSON}, `{"message":"You have exceeded a secondary rate limit."}`}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a 429 without a time waits a minute", "github", reply{status: 429}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a 429 with a time waits that long", "github", reply{429, headers{"Retry-After": "5"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 5 * time.Second, ErrorClass: "rate_limited"}},
		{"github: forbidden", "github", reply{403, headers{"X-RateLimit-Remaining": "4999", "Content-Type": asJSON}, `{"message":"Resource not accessible"}`}, dispatch.Result{Outcome: dispatch.Forbidden, ErrorClass: "http_403"}},

		{"slack: success", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":true,"ts":"1.2"}`}, dispatch.Result{Outcome: dispatch.Completed}},
		{"slack: a 200 that says no", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"channel_not_found"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "not_ok"}},
		{"slack: a 200 that says not now", "slack", reply{200, headers{"Content-Type": asJSON, "Retry-After": "7"}, `{"ok":false,"error":"ratelimited"}`}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 7 * time.Second, ErrorClass: "rate_limited"}},
		{"slack: the rate limit", "slack", reply{429, headers{"Retry-After": "7"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 7 * time.Second, ErrorClass: "http_429"}},
		{"slack: an error after which some of it may have happened", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"internal_error"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a catastrophe after which some of it may have happened", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"fatal_error"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: an outage, after which the outcome is unknown", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"service_unavailable"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 without a word is no success", "slack", reply{status: 200}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 that is a page is no success", "slack", reply{200, headers{"Content-Type": "text/html"}, `<html>`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 of another shape is no success", "slack", reply{200, headers{"Content-Type": asJSON}, `[1]`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},

		{"sendgrid: accepted", "sendgrid", reply{status: 202}, dispatch.Result{Outcome: dispatch.Completed}},
		{"sendgrid: the rate limit", "sendgrid", reply{429, headers{"X-RateLimit-Reset": "1893499203", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 3 * time.Second, ErrorClass: "rate_limited"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, test.reply, "profile: '"+test.profile+"'", dispatch.ToolSpec{Class: dispatch.NonIdempotent, Settings: dispatchtest.Block("path: /")})
			got.HTTPStatus, got.Response = 0, nil
			if got.Outcome != test.want.Outcome || got.Final != test.want.Final || got.Replayed != test.want.Replayed ||
				got.RetryAfter != test.want.RetryAfter || got.ErrorClass != test.want.ErrorClass {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestAProfileSendsTheKeyAsTheProviderWantsIt(t *testing.T) {
	t.Parallel()
	key := request("").IdempotencyKey
	for settings, want := range map[string]map[string]string{
		"":                {"Idempotency-Key": key},
		"profile: stripe": {"Idempotency-Key": key},
		"profile: resend": {"Idempotency-Key": key},
		"profile: ietf":   {"Idempotency-Key": `"` + key + `"`},
		"profile: none":   {"Idempotency-Key": ""},
		"profile: github": {"Idempotency-Key": ""},
		"profile: ietf\nidempotency_key: {format: opaque}":                  {"Idempotency-Key": key},
		"profile: stripe\nidempotency_key: {header: X-Key, max_length: 32}": {"Idempotency-Key": "", "X-Key": strings.TrimPrefix(key, "idem_v1_")},
		"profile: github\nidempotency_key: {header: X-Key}":                 {"Idempotency-Key": "", "X-Key": key},
		"profile: stripe\nidempotency_key: {query: k}":                      {"Idempotency-Key": ""},
		"profile: sendgrid\nidempotency_key: {tuple_header: true}":          {"Idempotency-Key": "", "X-Agent-Idempotency-Tuple": "run-001,step-1,stripe%2Fcharge,invoice_442"},
	} {
		spec := dispatch.ToolSpec{Class: dispatch.NonIdempotent, Settings: dispatchtest.Block("path: /")}
		arrived := arrival(t, settings, spec)
		for name, value := range want {
			if got := arrived.Get(name); got != value {
				t.Errorf("%q sends %s: %q, want %q", settings, name, got, value)
			}
		}
	}
}

func TestAProfileHoldsToolsToWhatTheProviderKeeps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settings string
		class    dispatch.Class
		ttl      time.Duration
		want     string
	}{
		"a key that GitHub does not know":   {"profile: github", dispatch.KeyIdempotent, time.Hour, "knows no keys"},
		"a key that Slack does not know":    {"profile: slack", dispatch.KeyIdempotent, time.Hour, "knows no keys"},
		"a key that SendGrid does not know": {"profile: sendgrid", dispatch.KeyIdempotent, time.Hour, "knows no keys"},
		"a key that is not recognised":      {"profile: none", dispatch.KeyIdempotent, time.Hour, "knows no keys"},
		"a key with a place of its own":     {"profile: none\nidempotency_key: {field: k}", dispatch.KeyIdempotent, time.Hour, ""},
		"a class without a key":             {"profile: github", dispatch.NonIdempotent, 0, ""},
		"longer than Stripe remembers":      {"profile: stripe", dispatch.KeyIdempotent, 25 * time.Hour, "longer than the 24h"},
		"as long as Stripe remembers":       {"profile: stripe", dispatch.KeyIdempotent, 24 * time.Hour, ""},
		"longer than Resend remembers":      {"profile: resend", dispatch.KeyIdempotent, 48 * time.Hour, "longer than the 24h"},
		"the ttl is not documented":         {"profile: ietf", dispatch.KeyIdempotent, 999 * time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := spec("https://api.example.com", test.settings, "")
			spec.Tools["charge"] = dispatch.ToolSpec{Class: test.class, KeyTTL: test.ttl, Settings: dispatchtest.Block("path: /")}
			_, err := dispatchhttp.New(spec)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v does not mention %q", err, test.want)
			}
		})
	}
}

func TestAnUnknownProfileIsTheOnlyComplaint(t *testing.T) {
	t.Parallel()
	_, err := dispatchhttp.New(spec("https://api.example.com", "profile: strpe", "path: /"))
	if err == nil || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("got %v", err)
	}
}

func TestSettingsNameTheProvidersOwnHeaders(t *testing.T) {
	t.Parallel()
	tool := dispatch.ToolSpec{Class: dispatch.ReadOnly, Settings: dispatchtest.Block("path: /")}
	const settings = "profile: stripe\nreplay_header: x-again\nshould_retry_header: x-should-retry"
	got := answer(t, reply{500, map[string]string{"X-Again": "True", "Stripe-Should-Retry": "true"}, ""}, settings, tool)
	if !got.Replayed || !got.Final {
		t.Errorf("the replay was overlooked, or the profile's header still counts: %+v", got)
	}
	got = answer(t, reply{429, map[string]string{"X-Should-Retry": " false "}, ""}, settings, tool)
	if got.Outcome != dispatch.Rejected {
		t.Errorf("the advice was overlooked: %+v", got)
	}
}

func TestTheSchemaOffersEveryProfile(t *testing.T) {
	t.Parallel()
	field, _ := reflect.TypeFor[dispatchhttp.Settings]().FieldByName("Profile")
	var offered []string
	for _, option := range strings.Split(field.Tag.Get("jsonschema"), ",") {
		offered = append(offered, strings.TrimPrefix(option, "enum="))
	}
	_, err := dispatchhttp.New(spec("https://api.example.com", "profile: unknown", "path: /"))
	if want := "profile is none of " + strings.Join(offered, ", "); err == nil || err.Error() != want {
		t.Errorf("the schema offers %v, the adapter says: %v", offered, err)
	}
}
