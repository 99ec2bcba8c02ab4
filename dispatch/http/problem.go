package http

import (
	"encoding/json"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

// The longest words of a provider that are kept, in characters.
const (
	maxProblemLine   = 255
	maxProblemDetail = 1024
)

// details are the members of a Problem Details object (RFC 9457); nil where
// the response has none. A member of the wrong type counts as left out, as
// the RFC demands.
type details map[string]any

func problemDetails(a *answer) details {
	if mediaType(a.contentType()) != "application/problem+json" {
		return nil
	}
	object, _ := a.json().(map[string]any)
	return object
}

func (d details) text(member string) string {
	text, _ := d[member].(string)
	return text
}

// retryAfter reads a member that RFC 9457 does not know, but that Cloudflare
// sends in front of whatever API it protects.
func (d details) retryAfter() time.Duration {
	number, _ := d["retry_after"].(json.Number)
	wait, _ := retryafter.Seconds(number.String())
	return wait
}

// problem is what of the details is worth keeping; nil where nothing is.
func (d details) problem() *dispatch.Problem {
	kept := dispatch.Problem{
		Type:   storable.First(d.text("type"), maxProblemLine),
		Title:  storable.First(d.text("title"), maxProblemLine),
		Detail: storable.First(d.text("detail"), maxProblemDetail),
	}
	if kept == (dispatch.Problem{}) {
		return nil
	}
	return &kept
}
