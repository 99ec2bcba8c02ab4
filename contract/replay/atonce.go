package replay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// keyedAtOnce lets one call act; the others are replays, or told to wait.
func (e evidence) keyedAtOnce() Check {
	check := e.harmlessAtOnce()
	check.Expected = "one effect; the others replayed or in_flight"
	if check.Verdict == Failed {
		return check
	}
	if unmarked, nameless := unproven(e.atOnce); unmarked > 1 && nameless > 0 {
		check.Verdict = Failed
		check.Advice = "neither a replay marker nor a provider reference tells the effects apart; set http.response.ref"
	}
	return check
}

// unproven counts the successes that may be effects of their own, and those of
// them that do not even name one.
func unproven(calls []Call) (unmarked, nameless int) {
	for _, call := range calls {
		if call.Outcome != dispatch.Completed || call.Replayed {
			continue
		}
		unmarked++
		if call.ProviderRef == "" {
			nameless++
		}
	}
	return unmarked, nameless
}

// harmlessAtOnce is what calls at once must not do, key or not.
func (e evidence) harmlessAtOnce() Check {
	check := Check{Name: "calls at once", Verdict: OK, Seen: summary(e.atOnce), Expected: "one effect; none rejected"}
	by := count(e.atOnce)
	switch effects := len(references(e.atOnce)); {
	case len(e.atOnce) == 0:
		check.Verdict, check.Advice = Skipped, "give --concurrent"
	case effects > 1:
		check.Verdict, check.Advice = Failed, fmt.Sprintf("the provider acted %d times", effects)
	case by[dispatch.Rejected] > 0:
		check.Verdict, check.Advice = Failed, "drainer would give up while the effect is under way; the refusal must be read as in_flight"
	case by[dispatch.Completed] == 0:
		check.Verdict, check.Advice = Failed, "none succeeded, which tells nothing; run it again"
	case by[dispatch.Completed]+by[dispatch.InFlight] < len(e.atOnce):
		check.Verdict, check.Advice = Warning, "some answers tell nothing"
	}
	return check
}

// effects counts what the provider says it did.
func (e evidence) effects() Check {
	check := Check{Name: "provider references", Verdict: OK, Expected: "one a key"}
	alone, together := len(references(e.alone())), len(references(e.atOnce))
	check.Seen = fmt.Sprintf("%d under the first key, %d under the second", alone, together)
	switch {
	case alone > 1 || together > 1:
		check.Verdict, check.Advice = Failed, "the provider acted more than once under one key"
	case alone == 0:
		check.Verdict, check.Seen, check.Advice = Warning, "none", "set http.response.ref, so that effects can be told apart"
	}
	return check
}

func count(calls []Call) map[dispatch.Outcome]int {
	by := map[dispatch.Outcome]int{}
	for _, call := range calls {
		by[call.Outcome]++
	}
	return by
}

// references are the effects that successes name.
func references(calls []Call) map[string]bool {
	distinct := map[string]bool{}
	for _, call := range calls {
		if call.Outcome == dispatch.Completed && call.ProviderRef != "" {
			distinct[call.ProviderRef] = true
		}
	}
	return distinct
}

// summary counts equal answers: "7 × completed, HTTP 200, replayed".
func summary(calls []Call) string {
	counts := map[string]int{}
	for _, call := range calls {
		counts[call.String()]++
	}
	var parts []string
	for _, answer := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d × %s", counts[answer], answer))
	}
	return strings.Join(parts, "; ")
}

// String is an answer in a few words: "rejected, HTTP 409".
func (c Call) String() string {
	text := string(c.Outcome)
	switch {
	case c.HTTPStatus != 0:
		text += fmt.Sprintf(", HTTP %d", c.HTTPStatus)
	case c.Error != "":
		text += ", " + c.Error
	}
	if c.Replayed {
		text += ", replayed"
	}
	return text
}
