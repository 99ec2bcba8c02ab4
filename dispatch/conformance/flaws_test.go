package conformance_test

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// flaw is one mistake that an adapter can make.
type flaw string

const (
	none flaw = "none"

	publishesNoShape      flaw = "publishes no shape of its blocks"
	publishesAnotherShape flaw = "publishes another shape than it decodes"
	acceptsUnknownFields  flaw = "accepts unknown fields"
	repeatsValues         flaw = "repeats values in errors of New"
	panicsInNew           flaw = "panics in New"
	connectsInNew         flaw = "connects in New"
	leaksInNew            flaw = "leaks a goroutine of New"

	losesTheKey      flaw = "loses the key"
	keysAttempts     flaw = "keys attempts, not intents"
	sharesAKey       flaw = "sends one key for all"
	numbersAttempts  flaw = "numbers attempts in the body"
	roundsNumbers    flaw = "decodes numbers as float64"
	sendsTwice       flaw = "sends everything twice"
	claimsAtOnce     flaw = "completes without sending"
	mixesRequests    flaw = "fails some of many at once"
	changesRequests  flaw = "changes the request"
	panicsAtStrange  flaw = "panics at what it does not expect"
	givesEngineWords flaw = "reports an outcome of the engine"

	sendsUnknownOperations flaw = "sends unknown operations"
	sendsWhenCancelled     flaw = "sends though it is cancelled"
	ignoresContext         flaw = "does not watch the context"
	hasNoTimeout           flaw = "has no timeout of its own"
	returnsLate            flaw = "returns late"
	deniesSending          flaw = "says not_sent after sending"
	doubtsEverything       flaw = "says ambiguous without a connection"
	takesSilenceForSuccess flaw = "takes silence for success"
	takesBabbleForSuccess  flaw = "takes babble for success"
	mistakesRefusals       flaw = "mistakes one refusal for another"
	retriesByItself        flaw = "retries by itself"
	staysBroken            flaw = "stays broken"
	dialsByItself          flaw = "dials past the network"
	blursRefusedEgress     flaw = "takes refused egress for a failed connection"

	tellsSecrets     flaw = "tells a secret in an error class"
	echoesSecrets    flaw = "stores a secret in a response"
	tellsPayloads    flaw = "tells the payload in a problem"
	givesFreeText    flaw = "gives free text for an error class"
	givesNoClass     flaw = "gives no error class"
	storesNUL        flaw = "stores NUL"
	leaksGoroutines  flaw = "leaks a goroutine of Dispatch"
	leaksConnections flaw = "leaks connections"
	failsToClose     flaw = "fails to close"
	neverCloses      flaw = "never returns from Close"
)

// distort is what happens to a message on its way out.
func (t *toy) distort(message *line, request dispatch.Request) {
	switch t.flaw {
	case losesTheKey:
		message.Key = ""
	case keysAttempts:
		message.Key += string(rune('0' + request.Attempt))
	case sharesAKey:
		message.Key = "the key"
	case numbersAttempts:
		message.Payload = json.RawMessage(`{"n": ` + strings.Repeat("1", request.Attempt) + `}`)
	case roundsNumbers:
		var value any
		_ = json.Unmarshal(message.Payload, &value)
		message.Payload, _ = json.Marshal(value)
	}
}

// misbehaveBefore is what happens instead of a dispatch, if anything.
func (t *toy) misbehaveBefore(request dispatch.Request) (dispatch.Result, bool) {
	switch t.flaw {
	case claimsAtOnce:
		return dispatch.Result{Outcome: dispatch.Completed}, true
	case mixesRequests:
		if t.calls.Load() > 32 {
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "full"}, true
		}
	case changesRequests:
		request.Headers["x-changed"] = "1"
	case panicsAtStrange:
		if !isUsual(request) {
			panic("strange")
		}
	case staysBroken:
		if t.failed.Load() {
			return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "closed"}, true
		}
	case leaksGoroutines:
		go func() { <-make(chan struct{}) }()
	}
	return dispatch.Result{}, false
}

func isUsual(request dispatch.Request) bool {
	var payload struct{ Amount *int }
	err := json.Unmarshal(request.Payload, &payload)
	return err == nil && payload.Amount != nil && strings.Contains(string(request.Payload), "a memo of the agent") &&
		request.Tuple.BusinessScope == "conformance" && request.Headers["traceparent"] != "" && request.Headers["tracestate"] == ""
}

// misbehaveAfter is what becomes of a result.
func (t *toy) misbehaveAfter(request dispatch.Request, result dispatch.Result) dispatch.Result {
	failed := result.Outcome != dispatch.Completed
	t.failed.Store(failed)
	switch {
	case t.flaw == returnsLate && failed:
		<-time.After(3 * patience / 4)
	case t.flaw == sendsTwice:
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		text, _ := t.write(toyTool{Verb: "act"}, request)
		return t.send(ctx, text)
	case t.flaw == givesEngineWords:
		result.Outcome, result.ErrorClass = dispatch.Lost, "lost"
	case t.flaw == tellsSecrets && failed:
		result.ErrorClass = "refused_" + t.settings.Token
	case t.flaw == echoesSecrets:
		result.Response, _ = json.Marshal(map[string]string{"authorization": "Bearer " + t.settings.Token})
	case t.flaw == tellsPayloads && failed:
		result.Problem = &dispatch.Problem{Detail: "refused: " + string(request.Payload)}
	case t.flaw == givesFreeText && failed:
		result.ErrorClass = "dial tcp 127.0.0.1: connection refused"
	case t.flaw == givesNoClass && failed:
		result.ErrorClass = ""
	case t.flaw == storesNUL:
		result.Response = json.RawMessage(`{"said": "\u0000"}`)
	}
	return result
}
