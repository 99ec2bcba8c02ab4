package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// classification asks what an adapter makes of a situation that it meets on a
// working connection, and whether it gets over it.
func classification(situation Situation) func(*bench) []Check {
	if situation == Forbidden {
		return forbidden
	}
	return func(b *bench) []Check {
		checks := []Check{b.warm()}
		b.Enter(situation)
		seen := b.dispatchFor(b.limit(situation))
		return append(checks, classified(seen, evidence[situation]), b.promptly(seen.Took, b.limit(situation)), b.recovery())
	}
}

// limit is the deadline of a dispatch that nobody is going to answer, and of
// any other.
func (b *bench) limit(situation Situation) time.Duration {
	if situation == Silent || situation == Unreachable {
		return b.subject.moment()
	}
	return b.subject.patience()
}

func classified(seen Seen, as []dispatch.Outcome) Check {
	return found("outcome", seen.ended(as...), seen.String(), either(as), advice(seen, as))
}

// advice names the harm that a wrong outcome does.
func advice(seen Seen, as []dispatch.Outcome) string {
	doubtful := slices.Contains(as, dispatch.Ambiguous)
	switch got := seen.Result.Outcome; {
	case seen.Hung || seen.Panic != "":
		return "the engine knows nothing of what became of the request"
	case doubtful && got == dispatch.Completed:
		return "an effect is claimed that nobody reported"
	case doubtful:
		return "the effect may have happened; it would be repeated without its key being honoured, or called a failure"
	case got == dispatch.Ambiguous || got == dispatch.InFlight:
		return "there is proof that nothing happened, and a human would be asked all the same"
	case got == dispatch.Completed:
		return "there was no effect"
	}
	return "the engine would wait, repeat or give up wrongly"
}

func either(outcomes []dispatch.Outcome) string {
	words := make([]string, len(outcomes))
	for i, outcome := range outcomes {
		words[i] = string(outcome)
	}
	return strings.Join(words, " or ")
}

// forbidden asks whether every connection is made through the network that
// the configuration rules.
func forbidden(b *bench) []Check {
	b.network.forbidden.Store(true)
	seen := b.dispatchFor(b.subject.patience())
	b.network.forbidden.Store(false)
	return []Check{
		found("outcome", seen.ended(dispatch.NotSent), seen.String(), "not_sent, egress_refused",
			"connect through Spec.Network and no other way"),
		found("error class", seen.Result.ErrorClass == "egress_refused", seen.String(), "not_sent, egress_refused",
			"tell what errors.Is finds to be dispatch.ErrEgressRefused from a connection that failed"),
		b.recovery(),
	}
}

// fromTheStart asks about a situation that the adapter meets before it ever
// had a connection. Who is not there leaves no room for doubt; who fails during
// a handshake has not been sent anything, and manners look whether that is so.
func fromTheStart(situation Situation) func(*bench) []Check {
	outcomes := []dispatch.Outcome{dispatch.NotSent}
	if situation != Unreachable {
		outcomes = append(outcomes, dispatch.Ambiguous)
	}
	return func(b *bench) []Check {
		b.Enter(situation)
		seen := b.dispatchFor(b.limit(situation))
		return []Check{classified(seen, outcomes), b.promptly(seen.Took, b.limit(situation)), b.recovery()}
	}
}

// dispatchFor dispatches a fresh intent with a deadline.
func (b *bench) dispatchFor(limit time.Duration) Seen {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return b.dispatchUntil(ctx, b.intent())
}

// promptly asks whether a dispatch returned soon after it had to.
func (b *bench) promptly(took, limit time.Duration) Check {
	return found("prompt", took <= limit+b.subject.soon(),
		fmt.Sprintf("returned after %s", took.Round(time.Millisecond)),
		fmt.Sprintf("at most %s after %s", b.subject.soon(), limit),
		"a worker's place is taken until Dispatch returns; watch ctx wherever it waits")
}

// recovery asks whether the same adapter completes once the counterpart
// answers again. It may need more than one dispatch to notice.
func (b *bench) recovery() Check {
	b.Enter(Answering)
	var seen Seen
	recovered := await(b.subject.patience(), func() bool {
		seen = b.dispatch(context.Background(), b.intent())
		return seen.ended(dispatch.Completed) || seen.Hung
	}) && !seen.Hung
	return found("recovery", recovered, seen.String(), "completed, once the counterpart answers again", "connect anew after a failure")
}
