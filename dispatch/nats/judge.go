package nats

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// verdict is the meaning of a stream's error.
type verdict struct {
	outcome dispatch.Outcome
	class   string
}

// codeStoreFailed is the code of two errors: the stream is full, or the stream does not know what it has stored on
// disk.
const codeStoreFailed jetstream.ErrorCode = 10077

// verdicts has the errors that a stream sends before it stores a message, by their code in the server's errors.json.
var verdicts = map[jetstream.ErrorCode]verdict{
	10002: {dispatch.Throttled, "account_resources_exceeded"},
	10008: {dispatch.Throttled, "jetstream_unavailable"},
	10023: {dispatch.Throttled, "insufficient_resources"},
	10028: {dispatch.Throttled, "insufficient_memory"},
	10039: {dispatch.Throttled, "jetstream_not_enabled"},
	10047: {dispatch.Throttled, "insufficient_storage"},
	10054: {dispatch.Rejected, "message_too_large"},
	10060: {dispatch.Rejected, "another_stream"},
	10071: {dispatch.Rejected, "wrong_last_sequence"},
	10076: {dispatch.Throttled, "jetstream_not_enabled"},
	10097: {dispatch.Rejected, "headers_too_large"},
	10109: {dispatch.Rejected, "stream_sealed"},
	10158: {dispatch.InFlight, "duplicate_in_process"},
	10163: {dispatch.Throttled, "last_sequence_not_ready"},
	10164: {dispatch.Rejected, "wrong_last_sequence"},
	10167: {dispatch.Throttled, "too_many_requests"},
}

const streamFull = "stream_full" // concerns one stream: other streams have room

// fullStream has the error texts of a stream that discards new messages because it is full. Only the text
// distinguishes them from a broken disk, which has the same error code.
var fullStream = map[string]verdict{
	"maximum messages exceeded":             {dispatch.Throttled, streamFull},
	"maximum bytes exceeded":                {dispatch.Throttled, streamFull},
	"maximum messages per subject exceeded": {dispatch.Throttled, streamFull},
	"message too large":                     {dispatch.Rejected, "message_too_large"},
}

// judge returns the outcome that the stream's refusal proves.
func (t *tool) judge(err error) dispatch.Result {
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		// No stream listened, so no stream has the message. A stream without a leader does not answer either, and
		// may get a leader again.
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "no_responders", OfOperation: true}
	}
	var refusal *jetstream.APIError
	if !errors.As(err, &refusal) {
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: classOf(err)}
	}
	proven := verdictOn(refusal)
	if proven.outcome == dispatch.InFlight && t.class == dispatch.NonIdempotent {
		proven.outcome = dispatch.Ambiguous // the message must not be sent again
	}
	return dispatch.Result{
		Outcome:     proven.outcome,
		ErrorClass:  proven.class,
		OfOperation: proven.class == streamFull,
		Problem:     &dispatch.Problem{Title: proven.class, Detail: evidence.Text(refusal.Description)},
	}
}

func verdictOn(refusal *jetstream.APIError) verdict {
	if proven, known := verdicts[refusal.ErrorCode]; known {
		return proven
	}
	if proven, known := fullStream[refusal.Description]; known && refusal.ErrorCode == codeStoreFailed {
		return proven
	}
	class := "jetstream_" + strconv.Itoa(int(refusal.ErrorCode))
	if refusal.Code == 400 { // the message itself is wrong
		return verdict{dispatch.Rejected, class}
	}
	return verdict{dispatch.Ambiguous, class}
}

func classOf(err error) string {
	if errors.Is(err, jetstream.ErrAsyncPublishTimeout) {
		return "timeout"
	}
	return "protocol"
}

// position is the stored response of an effect.
type position struct {
	Stream    string `json:"stream"`
	Sequence  uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate,omitempty"`
	Domain    string `json:"domain,omitempty"`
}

func stored(ack *jetstream.PubAck) dispatch.Result {
	if ack.Sequence == 0 { // sequence numbers begin at 1
		return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "protocol"}
	}
	response, err := json.Marshal(position{
		Stream: evidence.Text(ack.Stream), Sequence: ack.Sequence, Duplicate: ack.Duplicate, Domain: evidence.Text(ack.Domain),
	})
	if err != nil {
		response = nil // the message is stored all the same
	}
	return dispatch.Result{
		Outcome:     dispatch.Completed,
		Replayed:    ack.Duplicate,
		ProviderRef: evidence.Text(fmt.Sprintf("%s/%d", ack.Stream, ack.Sequence)),
		Response:    response,
	}
}
