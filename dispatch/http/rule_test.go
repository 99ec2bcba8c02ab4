package http_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

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
			tool := dispatch.ToolSpec{Class: test.class, Settings: block("{path: /, response: {rules: " + test.rules + "}}")}
			got := answer(t, test.reply, "profile: stripe\nmax_response_body: 100", tool)
			if got.Outcome != test.want.Outcome || got.Final != test.want.Final || got.RetryAfter != test.want.RetryAfter || got.ErrorClass != test.want.ErrorClass {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// The time was up, so nobody can tell what the rule would have said.
func TestAnAnswerThatNoRuleWasInTimeForLeavesDoubt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	spec := spec(server.URL, "", "{path: /, response: {rules: [{when: last(repeat(true)), outcome: rejected}]}}")
	spec.Timeout = 300 * time.Millisecond
	got := newAdapter(t, spec).Dispatch(t.Context(), request(`{}`))
	if got.Outcome != dispatch.Ambiguous || got.ErrorClass != "timeout" {
		t.Errorf("got %+v, want ambiguous, timeout", got)
	}
}

func TestARuleForEveryResponseIsRefusedUnlessItDoubts(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"true", ".status != 201", ".body.ok != true", ".body.error == null", "(.body.data | length) == 0", ".status >= 200"} {
		for outcome, refused := range map[string]bool{"completed": true, "throttled": true, "rejected": true, "absent": true, "in_flight": false, "ambiguous": false} {
			spec := spec("https://api.example.com", "", "")
			spec.Tools["charge"] = dispatch.ToolSpec{
				Class:    dispatch.ReadOnly,
				Settings: block("{path: /, response: {rules: [{when: '" + when + "', outcome: " + outcome + "}]}}"),
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
		spec.Tools["charge"] = dispatch.ToolSpec{Class: class, Settings: block("{path: /, response: {rules: [{when: .status == 202, outcome: in_flight}]}}")}
		_, err := dispatchhttp.New(spec)
		if refused := err != nil; refused != (class == dispatch.NonIdempotent) {
			t.Errorf("%s: %v", class, err)
		}
	}
}

func TestAReferenceStaysExactBesideRules(t *testing.T) {
	t.Parallel()
	tool := dispatch.ToolSpec{Class: dispatch.KeyIdempotent, Settings: block("{path: /, response: {ref: .id, rules: [{when: .body.id == 1, outcome: rejected}]}}")}
	got := answer(t, reply{200, map[string]string{"Content-Type": asJSON}, `{"id": 9007199254740993}`}, "", tool)
	if got.ProviderRef != "9007199254740993" {
		t.Errorf("reference %q", got.ProviderRef)
	}
}
