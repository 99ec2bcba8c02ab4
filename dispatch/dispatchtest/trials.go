package dispatchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// classification checks the outcome for a situation that begins on a working connection, and whether the adapter
// recovers from it.
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

// limit is the deadline of a dispatch. It is short if no answer will come.
func (b *bench) limit(situation Situation) time.Duration {
	if situation == Silent || situation == Unreachable {
		return b.subject.moment()
	}
	return b.subject.patience()
}

func classified(seen Seen, as []dispatch.Outcome) Check {
	return found("outcome", seen.ended(as...), seen.String(), either(as), advice(seen, as))
}

// advice names the harm of a wrong outcome.
func advice(seen Seen, as []dispatch.Outcome) string {
	doubtful := slices.Contains(as, dispatch.Ambiguous)
	switch got := seen.Result.Outcome; {
	case seen.Hung || seen.Panic != "":
		return "the engine knows nothing of what became of the request"
	case doubtful && got == dispatch.Completed:
		return "an effect is claimed that the counterpart did not report"
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

// forbidden checks that the adapter makes every connection through the network with the egress rules.
func forbidden(b *bench) []Check {
	b.network.forbidden.Store(true)
	seen := b.dispatchFor(b.subject.patience())
	b.network.forbidden.Store(false)
	return []Check{
		found("outcome", seen.ended(dispatch.NotSent), seen.String(), "not_sent, egress_refused",
			"connect through Spec.Network and no other way"),
		found("error class", seen.Result.ErrorClass == "egress_refused", seen.String(), "not_sent, egress_refused",
			"distinguish an error for which errors.Is finds dispatch.ErrEgressRefused from a connection that failed"),
		b.recovery(),
	}
}

// fromTheStart checks a situation that begins before the adapter has a connection. If nothing listens, there is no
// doubt. If the counterpart fails during a handshake, nothing was sent, and manners checks that the outcome fits.
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

// promptly checks that a dispatch returned soon after its limit.
func (b *bench) promptly(took, limit time.Duration) Check {
	return found("prompt", took <= limit+b.subject.soon(),
		fmt.Sprintf("returned after %s", took.Round(time.Millisecond)),
		fmt.Sprintf("at most %s after %s", b.subject.soon(), limit),
		"a worker's place is taken until Dispatch returns; watch ctx wherever it waits")
}

// recovery checks that the same adapter completes a dispatch once the counterpart answers again. The adapter may
// need more than one dispatch to notice.
func (b *bench) recovery() Check {
	b.Enter(Answering)
	var seen Seen
	recovered := await(b.subject.patience(), func() bool {
		seen = b.dispatch(context.Background(), b.intent())
		return seen.ended(dispatch.Completed) || seen.Hung
	}) && !seen.Hung
	return found("recovery", recovered, seen.String(), "completed, once the counterpart answers again", "reconnect after a failure")
}

// cancelledBefore checks that a dispatch that is cancelled before it begins sends nothing, with a connection and
// without one.
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

// cancelledMeanwhile checks that a dispatch ends when it is cancelled, and that its outcome then says that the
// request may have been sent.
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

// ownTimeout checks that the adapter bounds a dispatch whose context has no deadline.
func ownTimeout(b *bench) []Check {
	checks := []Check{b.warm()}
	b.Enter(Silent)
	seen := b.dispatchUntil(context.Background(), b.intent())
	return append(checks, classified(seen, evidence[Silent]), b.promptly(seen.Took, b.subject.moment()), b.recovery())
}

// keyStability checks that the counterpart can recognise a repeated request.
func keyStability(b *bench) []Check {
	request := b.intent()
	first := b.arrivalsOf(request)
	request.Attempt = 2
	again := b.arrivalsOf(request)
	other := b.arrivalsOf(b.intent())
	checks := []Check{
		arrived("first attempt", first),
		arrived("second attempt", again),
		arrived("another intent", other),
		sameBytes(first, again),
	}
	if !b.subject.carriesKeys() {
		return append(checks, skipped("keys", "none", "the class of the tool promises nothing of keys"))
	}
	return append(checks, sameKey(first, again), otherKey(first, other))
}

// arrival is a dispatch and the messages that it sent to the counterpart.
type arrival struct {
	seen     Seen
	messages []Message
}

// arrivalsOf dispatches and waits for the message of a success. A counterpart that recognised a repetition may show
// no message.
func (b *bench) arrivalsOf(request dispatch.Request) arrival {
	before := b.Received()
	seen := b.dispatch(context.Background(), request)
	patience := b.subject.patience()
	if seen.Result.Replayed || (request.Attempt > 1 && !b.subject.carriesKeys()) {
		patience = b.subject.moment()
	}
	if seen.ended(dispatch.Completed) {
		await(patience, func() bool { return len(b.Received()) > len(before) })
	}
	return arrival{seen, without(b.Received(), before)}
}

// without removes the messages that had arrived before, since a counterpart may show messages in any order.
func without(messages, before []Message) []Message {
	rest := slices.Clone(messages)
	for _, old := range before {
		at := slices.IndexFunc(rest, func(m Message) bool { return m.Key == old.Key && bytes.Equal(m.Body, old.Body) })
		if at >= 0 {
			rest = slices.Delete(rest, at, at+1)
		}
	}
	return rest
}

func arrived(name string, a arrival) Check {
	holds := a.seen.ended(dispatch.Completed) && (len(a.messages) == 1 || len(a.messages) == 0 && a.seen.Request.Attempt > 1)
	return found(name, holds, fmt.Sprintf("%s; %d arrived", a.seen, len(a.messages)), "completed; 1 arrived",
		"one Dispatch is one message; Received must show each that arrives")
}

func sameBytes(first, again arrival) Check {
	const name, expected = "same bytes", "the second attempt's message equal to the first's"
	if len(again.messages) == 0 || len(first.messages) == 0 {
		return skipped(name, expected, "the counterpart recognised the repetition and shows no second message")
	}
	a, b := first.messages[0].Body, again.messages[0].Body
	return found(name, bytes.Equal(a, b), fmt.Sprintf("%d and %d bytes", len(a), len(b)), expected,
		"a counterpart may refuse a known key with another body; write maps in a fixed order, and no clock or number of the attempt")
}

func sameKey(first, again arrival) Check {
	keys := append(keysOf(first), keysOf(again)...)
	slices.Sort(keys)
	holds := len(keys) > 0 && keys[0] != "" && len(slices.Compact(keys)) == 1
	return found("same key", holds, numbered(keys), "one key for both attempts", "without its key a repeated request is a second effect")
}

func otherKey(first, other arrival) Check {
	a, b := keysOf(first), keysOf(other)
	holds := len(a) > 0 && len(b) > 0 && b[0] != "" && !slices.Contains(a, b[0])
	return found("another key", holds, numbered(append(a, b...)), "a key of its own for another intent", "derive it from Request.IdempotencyKey alone")
}

func keysOf(a arrival) []string {
	keys := make([]string, len(a.messages))
	for i, message := range a.messages {
		keys[i] = message.Key
	}
	return keys
}

// numbered describes keys without repeating them: "keys 1, 1, none".
func numbered(keys []string) string {
	var known, words []string
	for _, key := range keys {
		at := slices.Index(known, key)
		if at < 0 {
			at, known = len(known), append(known, key)
		}
		word := fmt.Sprint(at + 1)
		if key == "" {
			word = "none"
		}
		words = append(words, word)
	}
	return "keys " + strings.Join(words, ", ")
}

// exactNumbers checks that numbers arrive digit for digit. A float64 could turn an amount into another one.
func exactNumbers(b *bench) []Check {
	const name, expected = "numbers", "each digit for digit"
	if b.Exact == nil {
		return []Check{skipped(name, expected, "give Counterpart.Exact a payload with numbers that a float64 cannot hold")}
	}
	got := b.arrivalsOf(b.intentWith(b.Exact))
	var lost []string
	for _, number := range numbersIn(b.Exact) {
		if len(got.messages) == 0 || !bytes.Contains(got.messages[0].Body, []byte(number)) {
			lost = append(lost, number)
		}
	}
	return []Check{
		arrived("dispatch", got),
		found(name, len(lost) == 0, fmt.Sprintf("%d lost %s", len(lost), strings.Join(lost, " ")), expected, "decode with json.Decoder.UseNumber, or not at all"),
	}
}

func numbersIn(document json.RawMessage) (numbers []string) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return numbers
		}
		if number, ok := token.(json.Number); ok {
			numbers = append(numbers, number.String())
		}
	}
}

const manyAtOnce = 64

// atOnce dispatches many intents at the same time, before there is a connection. They share a payload and headers,
// so that the race detector finds an adapter that writes to them.
func atOnce(b *bench) []Check {
	shared := b.intent()
	ended := make([]Seen, manyAtOnce)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range ended {
		request := b.intent()
		request.Payload, request.Headers = shared.Payload, shared.Headers
		group.Go(func() {
			<-start
			ended[i] = b.dispatch(context.Background(), request)
		})
	}
	close(start)
	group.Wait()
	await(b.subject.patience(), func() bool { return len(b.Received()) >= manyAtOnce })
	return []Check{allCompleted(ended), b.allArrived()}
}

func allCompleted(ended []Seen) Check {
	completed, other := 0, ""
	for _, seen := range ended {
		if seen.ended(dispatch.Completed) {
			completed++
		} else {
			other = "; " + seen.String()
		}
	}
	return found("completed", completed == len(ended), fmt.Sprintf("%d of %d%s", completed, len(ended), other), "all", "Dispatch is called concurrently")
}

func (b *bench) allArrived() Check {
	messages, distinct := b.Received(), map[string]bool{}
	for _, message := range messages {
		distinct[message.Key] = true
	}
	seen := fmt.Sprintf("%d messages with %d keys", len(messages), len(distinct))
	if !b.subject.carriesKeys() {
		return found("arrived", len(messages) == manyAtOnce, seen, fmt.Sprintf("%d messages", manyAtOnce), "requests must not mix")
	}
	return found("arrived", len(messages) == manyAtOnce && len(distinct) == manyAtOnce, seen, fmt.Sprintf("%d messages, each with its own key", manyAtOnce), "requests must not mix")
}
