package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// keyStability asks what the counterpart can recognise a repetition by.
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
		sameOctets(first, again),
	}
	if !b.subject.carriesKeys() {
		return append(checks, skipped("keys", "none", "the class of the tool promises nothing of keys"))
	}
	return append(checks, sameKey(first, again), otherKey(first, other))
}

// arrival is a dispatch, and what it brought to the counterpart.
type arrival struct {
	seen     Seen
	messages []Message
}

// arrivalsOf waits for the message of a success. A counterpart that recognised
// the repetition may have nothing to show for it.
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

// without takes away what had arrived before: a counterpart may show messages
// in any order.
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

func sameOctets(first, again arrival) Check {
	const name, expected = "same octets", "the second attempt's message equal to the first's"
	if len(again.messages) == 0 || len(first.messages) == 0 {
		return skipped(name, expected, "the counterpart recognised the repetition and shows no second message")
	}
	a, b := first.messages[0].Body, again.messages[0].Body
	return found(name, bytes.Equal(a, b), fmt.Sprintf("%d and %d octets", len(a), len(b)), expected,
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

// numbered tells keys apart without repeating them: "keys 1, 1, none".
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

// exactNumbers asks whether a number arrives digit for digit: what passes
// through a float64 is another amount.
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
