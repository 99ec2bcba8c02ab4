package conformance

import (
	"context"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// cancelledBefore asks whether a dispatch that nobody wants any more is left
// alone, with a connection and without one.
func cancelledBefore(b *bench) []Check {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cold := b.dispatchUntil(ctx, b.intent())
	checks := []Check{unwanted("without a connection", cold), b.promptly(cold.Took, 0), b.warm()}
	warm := b.dispatchUntil(ctx, b.intent())
	return append(checks, unwanted("with a connection", warm), b.promptly(warm.Took, 0), b.recovery())
}

func unwanted(name string, seen Seen) Check {
	return found(name, seen.ended(dispatch.NotSent), seen.String(), "not_sent", "look at ctx before sending")
}

// cancelledMeanwhile asks whether a dispatch ends once nobody waits for it,
// and whether it then remembers that the request has left.
func cancelledMeanwhile(b *bench) []Check {
	checks := []Check{b.warm()}
	b.Enter(Silent)
	arrived := len(b.Received())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan Seen, 1)
	go func() { ended <- b.dispatchUntil(ctx, b.intent()) }()
	await(b.subject.moment(), func() bool { return len(b.Received()) > arrived || len(ended) > 0 })
	cancelled := time.Now()
	cancel()
	seen := <-ended
	return append(checks, classified(seen, evidence[Silent]), b.promptly(time.Since(cancelled), 0), b.recovery())
}

// ownTimeout asks whether the adapter bounds a dispatch that its caller does
// not bound.
func ownTimeout(b *bench) []Check {
	checks := []Check{b.warm()}
	b.Enter(Silent)
	seen := b.dispatchUntil(context.Background(), b.intent())
	return append(checks, classified(seen, evidence[Silent]), b.promptly(seen.Took, b.subject.moment()), b.recovery())
}
