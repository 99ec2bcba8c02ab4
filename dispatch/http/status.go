package http

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// byStatus is what a response means where nobody knows better.
func byStatus(a *answer) verdict {
	outcome := outcomeOf(a)
	if outcome != dispatch.Completed {
		return verdict{outcome: outcome, class: statusClass(a.status)}
	}
	if a.unreliable != "" {
		return doubt(a.unreliable)
	}
	return verdict{outcome: dispatch.Completed}
}

func outcomeOf(a *answer) dispatch.Outcome {
	switch status := a.status; {
	case status >= 200 && status <= 299:
		return dispatch.Completed
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable, status == 529: // 529: overloaded
		return dispatch.Throttled
	case status == http.StatusTooEarly:
		return dispatch.InFlight
	case status == http.StatusConflict && saysInFlight(a):
		return dispatch.InFlight
	case status == http.StatusRequestTimeout:
		return dispatch.Ambiguous
	case status >= 300 && status <= 499:
		return dispatch.Rejected
	}
	return dispatch.Ambiguous
}

// saysInFlight tells the two meanings of 409 apart: still busy with this key,
// or refused. Only the first is worth another attempt, and providers say so
// with a Retry-After or in their problem details (RFC 9457). A 409 that does
// not say is a refusal: on a first attempt nothing of ours is in flight, and
// after an attempt in doubt a refusal does not end the doubt.
func saysInFlight(a *answer) bool {
	if a.header.Get("Retry-After") != "" {
		return true
	}
	details := problemDetails(a)
	words := strings.ToLower(strings.Join([]string{
		details.text("type"), details.text("title"), details.text("detail"), details.text("code"),
	}, " "))
	words = strings.NewReplacer("-", " ", "_", " ").Replace(words)
	return slices.ContainsFunc([]string{"outstanding", "in flight", "in progress", "in use", "being processed", "concurrent"},
		func(phrase string) bool { return strings.Contains(words, phrase) })
}

func statusClass(status int) string {
	if status >= 300 && status <= 399 {
		return "redirect"
	}
	return fmt.Sprintf("http_%d", status)
}
