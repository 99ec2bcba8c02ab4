package http

import (
	"net/http"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// What providers say about a request that comes twice: that this answer is
// the one of the first time, and whether a further time would help.

// replayHeaders are the markers in common use, and the provider's own.
func replayHeaders(own string) []string {
	headers := []string{"Idempotency-Replay", "Idempotent-Replayed"}
	if own != "" {
		headers = append(headers, own)
	}
	return headers
}

func (p *provider) isReplay(header http.Header) bool {
	return slices.ContainsFunc(p.replay, func(name string) bool { return saysTrue(header, name) })
}

// savedIfReplayed settles a server's failure that was stored with the key:
// every retry would bring it again, and it does not tell what happened. A
// provider that asks for a retry all the same is believed.
func (p *provider) savedIfReplayed(v verdict, a *answer) verdict {
	if a.status < 500 || !p.isReplay(a.header) || saysTrue(a.header, p.shouldRetry) {
		return v
	}
	return v.beyondRetry()
}

// advised follows what the provider says about another attempt. It moves a
// verdict towards doubt, with one exception: a provider that limits the rate
// and wants no retry has refused, without an effect.
func (p *provider) advised(v verdict, a *answer) verdict {
	switch {
	case saysTrue(a.header, p.shouldRetry):
		if v.outcome == dispatch.Rejected && a.status >= 400 {
			v.outcome = dispatch.InFlight
		}
	case saysFalse(a.header, p.shouldRetry):
		if v.outcome == dispatch.Throttled && a.status < 500 {
			v.outcome = dispatch.Rejected
		}
		return v.beyondRetry()
	}
	return v
}

// beyondRetry ends what would be tried again. Who hears "not now" or "still
// busy" and may not ask again does not know the end of it.
func (v verdict) beyondRetry() verdict {
	switch v.outcome {
	case dispatch.Throttled, dispatch.InFlight, dispatch.Ambiguous:
		v.outcome, v.final = dispatch.Ambiguous, true
	}
	return v
}

func saysTrue(header http.Header, name string) bool  { return says(header, name, "true") }
func saysFalse(header http.Header, name string) bool { return says(header, name, "false") }

func says(header http.Header, name, word string) bool {
	return name != "" && strings.EqualFold(strings.TrimSpace(header.Get(name)), word)
}
