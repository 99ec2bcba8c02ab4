package http_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
)

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
		want    dispatch.Result // what of it is written here
	}{
		{"no profile: a 409 that does not say is a refusal", "", reply{409, headers{"Content-Type": asJSON}, `{"error":"exists"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_409"}},
		{"no profile: a 422 is a refusal", "", reply{status: 422}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_422"}},
		{"no profile: a 425 is in flight", "", reply{status: 425}, dispatch.Result{Outcome: dispatch.InFlight, ErrorClass: "http_425"}},
		{"no profile: Stripe's advice is not heard", "", reply{500, headers{"Stripe-Should-Retry": "false"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "http_500"}},
		{"no profile: a replay is a success", "", reply{200, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Completed, Replayed: true}},
		{"no profile: a saved 500 is final", "", reply{500, headers{"Idempotency-Replay": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, Replayed: true, ErrorClass: "http_500"}},
		{"no profile: a saved 503 tells nothing, and is final", "", reply{503, headers{"Idempotent-Replayed": "true"}, ""}, dispatch.Result{Outcome: dispatch.Ambiguous, Final: true, Replayed: true, ErrorClass: "http_503"}},
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
		{"stripe: a redirect stays a refusal", "stripe", reply{302, headers{"Stripe-Should-Retry": "true"}, ""}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "redirect"}},
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
		{"resend: a 409 that cannot be read tells nothing", "resend", reply{409, headers{"Content-Type": asJSON}, `{"name":"concurr`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "malformed_body"}},

		{"github: the hourly limit, by 403", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1893499260", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: the hourly limit, by 429", "github", reply{429, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1893499260", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a reset that cannot be read", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rate_limited"}},
		{"github: a reset that is past", "github", reply{403, headers{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rate_limited"}},
		{"github: the secondary limit, with Retry-After", "github", reply{403, headers{"Retry-After": "30"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 30 * time.Second, ErrorClass: "rate_limited"}},
		{"github: the secondary limit, in words", "github", reply{403, headers{"Content-Type": asJSON}, `{"message":"You have exceeded a secondary rate limit."}`}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a 429 without a time waits a minute", "github", reply{status: 429}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: time.Minute, ErrorClass: "rate_limited"}},
		{"github: a 429 with a time waits that long", "github", reply{429, headers{"Retry-After": "5"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 5 * time.Second, ErrorClass: "rate_limited"}},
		{"github: forbidden", "github", reply{403, headers{"X-RateLimit-Remaining": "4999", "Content-Type": asJSON}, `{"message":"Resource not accessible"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "http_403"}},

		{"slack: success", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":true,"ts":"1.2"}`}, dispatch.Result{Outcome: dispatch.Completed}},
		{"slack: a 200 that says no", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"channel_not_found"}`}, dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "not_ok"}},
		{"slack: a 200 that says not now", "slack", reply{200, headers{"Content-Type": asJSON, "Retry-After": "7"}, `{"ok":false,"error":"ratelimited"}`}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 7 * time.Second, ErrorClass: "rate_limited"}},
		{"slack: the rate limit", "slack", reply{429, headers{"Retry-After": "7"}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 7 * time.Second, ErrorClass: "http_429"}},
		{"slack: an error after which some of it may have happened", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"internal_error"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a catastrophe after which some of it may have happened", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"fatal_error"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: an outage, after which nobody knows", "slack", reply{200, headers{"Content-Type": asJSON}, `{"ok":false,"error":"service_unavailable"}`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 without a word is no success", "slack", reply{status: 200}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 that is a page is no success", "slack", reply{200, headers{"Content-Type": "text/html"}, `<html>`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "not_ok"}},
		{"slack: a 200 of another shape is no success", "slack", reply{200, headers{"Content-Type": asJSON}, `[1]`}, dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "rule_failed"}},

		{"sendgrid: accepted", "sendgrid", reply{status: 202}, dispatch.Result{Outcome: dispatch.Completed}},
		{"sendgrid: the rate limit", "sendgrid", reply{429, headers{"X-RateLimit-Reset": "1893499203", "Date": sent}, ""}, dispatch.Result{Outcome: dispatch.Throttled, RetryAfter: 3 * time.Second, ErrorClass: "rate_limited"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := answer(t, test.reply, "profile: '"+test.profile+"'", dispatch.ToolSpec{Class: dispatch.NonIdempotent, Settings: block("path: /")})
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
	key := tuple.IdempotencyKey()
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
		spec := dispatch.ToolSpec{Class: dispatch.NonIdempotent, Settings: block("path: /")}
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
		"a key that nobody knows":           {"profile: none", dispatch.KeyIdempotent, time.Hour, "knows no keys"},
		"a key with a place of its own":     {"profile: none\nidempotency_key: {field: k}", dispatch.KeyIdempotent, time.Hour, ""},
		"a class without a key":             {"profile: github", dispatch.NonIdempotent, 0, ""},
		"longer than Stripe remembers":      {"profile: stripe", dispatch.KeyIdempotent, 25 * time.Hour, "longer than the 24h"},
		"as long as Stripe remembers":       {"profile: stripe", dispatch.KeyIdempotent, 24 * time.Hour, ""},
		"longer than Resend remembers":      {"profile: resend", dispatch.KeyIdempotent, 48 * time.Hour, "longer than the 24h"},
		"nobody says how long":              {"profile: ietf", dispatch.KeyIdempotent, 999 * time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := spec("https://api.example.com", test.settings, "")
			spec.Tools["charge"] = dispatch.ToolSpec{Class: test.class, KeyTTL: test.ttl, Settings: block("path: /")}
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
	tool := dispatch.ToolSpec{Class: dispatch.ReadOnly, Settings: block("path: /")}
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
