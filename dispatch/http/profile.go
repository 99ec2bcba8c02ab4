package http

import (
	"fmt"
	"strings"
	"time"
)

// profile is what is known of a provider, in the words in which an operator
// would configure it. docs/providers.md cites the sources.
type profile struct {
	key               KeySettings   // without a place the provider knows no keys
	keyTTL            time.Duration // how long it says to remember a key; 0 where it does not say
	shouldRetryHeader string
	rules             []Rule
}

func findProfile(name string) (profile, error) {
	found, known := profiles[name]
	if !known {
		return profiles[""], fmt.Errorf("profile is none of %s", strings.Join(sortedKeys(profiles)[1:], ", "))
	}
	return found, nil
}

const idempotencyKey = "Idempotency-Key"

var profiles = map[string]profile{
	"":     {key: KeySettings{Header: idempotencyKey}},
	"none": {},
	"ietf": {
		key:   KeySettings{Header: idempotencyKey, Format: "quoted"},
		rules: []Rule{{When: `.status == 409`, Outcome: "in_flight", Error: "key_in_flight"}},
	},
	"stripe": {
		key:               KeySettings{Header: idempotencyKey},
		keyTTL:            24 * time.Hour,
		shouldRetryHeader: "Stripe-Should-Retry",
		rules: []Rule{
			{When: `.status == 409`, Outcome: "in_flight", Error: "key_in_flight"},
			{When: `.status == 400 and .body.error.type == "idempotency_error"`, Outcome: "rejected", Error: "key_mismatch"},
		},
	},
	"resend": {
		key:    KeySettings{Header: idempotencyKey},
		keyTTL: 24 * time.Hour,
		rules: []Rule{
			{When: `.status == 409 and .body.name == "concurrent_idempotent_requests"`, Outcome: "in_flight", Error: "key_in_flight"},
			{When: `.status == 409 and .body.name == "invalid_idempotent_request"`, Outcome: "rejected", Error: "key_mismatch"},
		},
	},
	"github": {
		rules: []Rule{
			{
				When:       `(.status == 403 or .status == 429) and .headers["x-ratelimit-remaining"] == "0"`,
				Outcome:    "throttled",
				RetryAfter: untilRateLimitReset,
				Error:      "rate_limited",
			},
			{When: `.status == 403 and .headers["retry-after"] != null`, Outcome: "throttled", Error: "rate_limited"},
			{
				When:       `.status == 429 or (.status == 403 and (.body | tostring | ascii_downcase | contains("rate limit")))`,
				Outcome:    "throttled",
				RetryAfter: `if .headers["retry-after"] then 0 else 60 end`,
				Error:      "rate_limited",
			},
		},
	},
	"slack": {
		rules: []Rule{
			{When: `.status == 200 and (.body.error == "ratelimited" or .body.error == "rate_limited")`, Outcome: "throttled", Error: "rate_limited"},
			{When: `.status == 200 and (.body.error == "internal_error" or .body.error == "fatal_error" or .body.error == "service_unavailable")`, Outcome: "ambiguous", Error: "not_ok"},
			{When: `.status == 200 and .body.ok == false`, Outcome: "rejected", Error: "not_ok"},
			{When: `.status == 200 and .body.ok != true`, Outcome: "ambiguous", Error: "not_ok"},
		},
	},
	"sendgrid": {
		rules: []Rule{{When: `.status == 429`, Outcome: "throttled", RetryAfter: untilRateLimitReset, Error: "rate_limited"}},
	},
}

// untilRateLimitReset reads a time in seconds since 1970.
const untilRateLimitReset = `(.headers["x-ratelimit-reset"] | tonumber) - .date`
