package http

import (
	"context"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// verdict is what a response proves.
type verdict struct {
	outcome    dispatch.Outcome
	final      bool // another attempt with this key would bring the same answer
	class      string
	retryAfter time.Duration
}

func doubt(class string) verdict { return verdict{outcome: dispatch.Ambiguous, class: class} }

// verdict asks whoever knows more first: the operator's rules, then the
// provider's profile, then what the status means by the book.
func (t *tool) verdict(ctx context.Context, a *answer) verdict {
	v, known := t.rules.verdict(ctx, a)
	if !known {
		v = t.provider.verdict(ctx, a)
	}
	return t.provider.savedIfReplayed(v, a)
}

func (p *provider) verdict(ctx context.Context, a *answer) verdict {
	v, known := p.rules.verdict(ctx, a)
	if !known {
		v = byStatus(a)
	}
	return p.advised(v, a)
}
