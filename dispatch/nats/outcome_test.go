package nats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAStreamThatIsFullTakesItLater(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*jetstream.StreamConfig){
		"messages":             func(config *jetstream.StreamConfig) { config.MaxMsgs = 1 },
		"bytes":                func(config *jetstream.StreamConfig) { config.MaxBytes = 300 },
		"messages per subject": func(config *jetstream.StreamConfig) { config.MaxMsgsPerSubject, config.DiscardNewPerSubject = 1, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Discard = jetstream.DiscardNew }, limit)
			adapter := adapterFor(t, c)
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent("first")), dispatch.Completed, "")
			var last dispatch.Result
			for i := 0; i < 10 && last.Outcome != dispatch.Throttled; i++ {
				last = adapter.Dispatch(t.Context(), intent(fmt.Sprint(i)))
			}
			dispatchtest.Expect(t, last, dispatch.Throttled, "stream_full")
			if !last.OfOperation {
				t.Error("it speaks for the whole server, whose other streams have room")
			}
		})
	}
}

func TestAStreamThatRefusesForGood(t *testing.T) {
	t.Parallel()
	for class, test := range map[string]struct {
		stream func(*jetstream.StreamConfig)
		tool   string
	}{
		"message_too_large":   {func(config *jetstream.StreamConfig) { config.MaxMsgSize = 5 }, ""},
		"stream_sealed":       {func(config *jetstream.StreamConfig) { config.Sealed = true }, ""},
		"wrong_last_sequence": {nil, `headers: {Nats-Expected-Last-Sequence: "7"}`},
	} {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			c := startWithStream(t)
			if test.stream != nil {
				c.update(t, test.stream)
			}
			adapter := newAdapter(t, spec(c.ClientURL(), "", "subject: "+subject+"\n"+test.tool))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{"long": "enough"}`)), dispatch.Rejected, class)
			if messages := c.stored(t); len(messages) != 0 {
				t.Errorf("%d messages", len(messages))
			}
		})
	}
}

func TestAMessageForAnotherStreamIsRejected(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	if _, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}, Duplicates: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	adapter := newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, stream: OTHER}`))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Rejected, "another_stream")
}

func TestAMessageBeyondTheServersLimitIsRejected(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	dispatchtest.Expect(t, adapterFor(t, c).Dispatch(t.Context(), request(`"`+strings.Repeat("x", 2<<20)+`"`)), dispatch.Rejected, "message_too_large")
}

func TestWhereNoStreamListensNothingHappens(t *testing.T) {
	t.Parallel()
	c := start(t)
	plain := spec(c.ClientURL(), "", "subject: "+subject)
	unfound := newAdapter(t, plain).Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, unfound, dispatch.NotSent, "stream_not_found")
	untaken := newAdapter(t, ofClass(dispatch.NonIdempotent, plain)).Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, untaken, dispatch.Throttled, "no_responders")
	if !unfound.OfOperation || !untaken.OfOperation {
		t.Error("it speaks for the whole server, which may have other streams")
	}
}

func TestAMessageThatNobodyTookIsNotSentAgain(t *testing.T) {
	t.Parallel()
	c := start(t)
	adapter := newAdapter(t, ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Throttled, "no_responders")
	connections, err := c.Connz(nil)
	if err != nil || len(connections.Conns) != 1 {
		t.Fatalf("%+v, %v", connections, err)
	}
	if published := connections.Conns[0].InMsgs; published != 1 {
		t.Errorf("%d messages", published)
	}
}

func TestWithoutJetStreamNothingIsSent(t *testing.T) {
	t.Parallel()
	c := start(t, func(options *server.Options) { options.JetStream = false })
	dispatchtest.Expect(t, adapterFor(t, c).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "jetstream_not_enabled")
}

// answering returns a counterpart that answers every message with this text, in the place of a stream.
func answering(t *testing.T, answer string) *counterpart {
	t.Helper()
	c := start(t)
	c.look(t)
	c.subscribe(t, func(message *natsgo.Msg) { _ = message.Respond([]byte(answer)) })
	return c
}

func TestWhatAStreamSaysDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	failed := func(code, number int, words string) string {
		return fmt.Sprintf(`{"error":{"code":%d,"err_code":%d,"description":%q},"stream":"CHARGES","seq":0}`, code, number, words)
	}
	for name, test := range map[string]struct {
		answer  string
		outcome dispatch.Outcome
		class   string
	}{
		"still at an earlier attempt": {failed(409, 10158, "duplicate message id is in process"), dispatch.InFlight, "duplicate_in_process"},
		"insufficient resources":      {failed(503, 10023, "insufficient resources"), dispatch.Throttled, "insufficient_resources"},
		"account limit":               {failed(400, 10002, "resource limits exceeded for account"), dispatch.Throttled, "account_resources_exceeded"},
		"too many requests":           {failed(429, 10167, "too many requests"), dispatch.Throttled, "too_many_requests"},
		"replicated sequence":         {failed(400, 10164, "wrong last sequence"), dispatch.Rejected, "wrong_last_sequence"},
		"a message that is wrong":     {failed(400, 10166, "per-message TTL is disabled"), dispatch.Rejected, "jetstream_10166"},
		"a broken disk":               {failed(503, 10077, "write: input/output error"), dispatch.Ambiguous, "jetstream_10077"},
		"a server's failure":          {failed(500, 10118, "stream is offline"), dispatch.Ambiguous, "jetstream_10118"},
		"an unknown error":            {failed(503, 65000, "?"), dispatch.Ambiguous, "jetstream_65000"},
		"an empty answer":             {``, dispatch.Ambiguous, "protocol"},
		"no JSON":                     {`OK`, dispatch.Ambiguous, "protocol"},
		"no stream":                   {`{"seq":7}`, dispatch.Ambiguous, "protocol"},
		"no sequence":                 {`{"stream":"CHARGES"}`, dispatch.Ambiguous, "protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := answering(t, test.answer)
			adapter := newAdapter(t, ofClass(dispatch.NaturallyIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), test.outcome, test.class)
		})
	}
}

func TestAServersWordsAreNotCut(t *testing.T) {
	t.Parallel()
	for _, how := range []string{`{"error":{"code":400,"err_code":65000,"description":"%s"}}`, `{"stream":"%s","seq":7}`} {
		dispatchtest.ExpectWhole(t, func(words string) dispatch.Result {
			c := answering(t, strings.Replace(how, "%s", words, 1))
			adapter := newAdapter(t, ofClass(dispatch.NaturallyIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
			return adapter.Dispatch(t.Context(), request(`{}`))
		})
	}
}

func TestAToolThatMustNotRepeatIsInDoubtWhileAnEarlierAttemptRuns(t *testing.T) {
	t.Parallel()
	c := answering(t, `{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`)
	adapter := newAdapter(t, ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "duplicate_in_process")
}

func TestAnAcknowledgementThatDoesNotComeLeavesDoubt(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.look(t)
	ctx, cancel := context.WithCancel(t.Context())
	c.subscribe(t, func(*natsgo.Msg) { cancel() })
	adapter := newAdapter(t, ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`{}`)), dispatch.Ambiguous, "cancelled")
}

func TestAConnectionLostBeforeTheAcknowledgementLeavesDoubt(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.look(t)
	c.subscribe(t, func(*natsgo.Msg) { c.Shutdown() })
	adapter := newAdapter(t, ofClass(dispatch.NonIdempotent, spec(c.ClientURL(), "", "subject: "+subject)))
	begin := time.Now()
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, "reset")
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("noticed after %s", took)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "dial")
}

func TestAServerThatDoesNotGreetHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	silent := dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	patient := spec("nats://"+silent, "", "subject: "+subject)
	patient.Timeout = 2 * drainertest.Patience
	adapter := newAdapter(t, patient)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`{}`)), dispatch.NotSent, "timeout")
	begin := time.Now()
	_ = adapter.Close()
	if took := time.Since(begin); took > drainertest.Patience {
		t.Errorf("closed after %s", took)
	}
}

func TestWhatTheNetworkForbidsIsNotReached(t *testing.T) {
	t.Parallel()
	forbidding := spec("nats://nats.invalid:4222", "", "subject: "+subject)
	forbidding.Network = dispatch.NewNetwork(func(_ context.Context, _, address string) (net.Conn, error) {
		if address != "nats.invalid:4222" {
			t.Errorf("asked for %s: the network resolves names", address)
		}
		return nil, dispatch.ErrEgressRefused
	}, nil)
	dispatchtest.Expect(t, newAdapter(t, forbidding).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "egress_refused")
}

// A connection may break anywhere. A message that is reported as stored is there, one that is reported as not sent
// is not there, and no message is stored twice, even if it is sent again.
func TestOutcomesHoldWhereverTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	const intents, atOnce = 600, 8
	c := startWithStream(t)
	brittle := dispatchtest.OpenGate(t, c.Addr().String(), func(client, server net.Conn) {
		if rand.N(2) == 0 { // half of the connections end with a reset
			_ = client.(*net.TCPConn).SetLinger(0)
		}
		const most = 16000
		dispatchtest.Carry(client, server, rand.N[int64](most), rand.N[int64](most))
	})
	adapter := newAdapter(t, spec("nats://"+brittle.Address, "", "subject: "+subject))

	outcomes := make([][]dispatch.Outcome, intents)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < intents; i = next.Add(1) - 1 {
				for range 2 {
					got := adapter.Dispatch(t.Context(), intent(fmt.Sprint(i)))
					outcomes[i] = append(outcomes[i], got.Outcome)
				}
			}
		})
	}
	workers.Wait()
	_ = adapter.Close()

	messages := map[string]int{}
	for _, message := range c.stored(t) {
		messages[message.Header.Get("Nats-Msg-Id")]++
	}
	seen := map[dispatch.Outcome]int{}
	for i, attempts := range outcomes {
		there := messages[intent(fmt.Sprint(i)).IdempotencyKey]
		completed, doubtful := false, false
		for _, outcome := range attempts {
			seen[outcome]++
			completed = completed || outcome == dispatch.Completed
			doubtful = doubtful || outcome == dispatch.Ambiguous
		}
		switch {
		case there > 1:
			t.Errorf("intent %d: %d messages", i, there)
		case completed && there != 1:
			t.Errorf("intent %d: completed, but not there", i)
		case !completed && !doubtful && there != 0:
			t.Errorf("intent %d: %v, but there", i, attempts)
		}
	}
	t.Logf("outcomes: %v", seen)
	if seen[dispatch.Completed] < 10 || seen[dispatch.NotSent] < 10 || seen[dispatch.Ambiguous] < 10 {
		t.Error("too few of a kind; this shows nothing")
	}
}

func TestAMessageCarriesThePayloadByteForByteAndTheKey(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	traced := request("{\"b\": 1.0,\n  \"a\": 12345678901234567890}")
	traced.Headers = map[string]string{"Traceparent": "00-ab", "tracestate": "s=1", "authorization": "forged"}

	got := adapterFor(t, c).Dispatch(t.Context(), traced)

	dispatchtest.Expect(t, got, dispatch.Completed, "")
	if got.ProviderRef != "CHARGES/1" || string(got.Response) != `{"stream":"CHARGES","seq":1}` || got.Replayed {
		t.Errorf("got %+v, response %s", got, got.Response)
	}
	message := c.stored(t)[0]
	if message.Subject != subject || string(message.Data) != string(traced.Payload) {
		t.Errorf("%s: %q", message.Subject, message.Data)
	}
	if message.Header.Get("Nats-Msg-Id") != traced.IdempotencyKey || message.Header.Get("traceparent") != "00-ab" || message.Header.Get("tracestate") != "s=1" || len(message.Header) != 3 {
		t.Errorf("headers %v", message.Header)
	}
}

func TestASecondAttemptIsRecognisedByItsKey(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	first := adapterFor(t, c).Dispatch(t.Context(), request(`{}`))
	second := adapterFor(t, c).Dispatch(t.Context(), request(`{}`)) // as another worker would

	dispatchtest.Expect(t, second, dispatch.Completed, "")
	if !second.Replayed || second.ProviderRef != first.ProviderRef {
		t.Errorf("first %+v, second %+v", first, second)
	}
	var position struct{ Duplicate bool }
	if err := json.Unmarshal(second.Response, &position); err != nil || !position.Duplicate {
		t.Errorf("response %s", second.Response)
	}
	if messages := c.stored(t); len(messages) != 1 {
		t.Errorf("%d messages", len(messages))
	}
}

func TestHeadersAndBodyAreTheConfigurations(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	adapter := newAdapter(t, spec(c.ClientURL(), "", `
subject: charges.created
stream: CHARGES
headers: {event: "charge {.payload.id}"}
map: "{id: .payload.id, key: .key}"
`))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{"id": 9007199254740993}`)), dispatch.Completed, "")
	message := c.stored(t)[0]
	if want := `{"id":9007199254740993,"key":"` + request("").IdempotencyKey + `"}`; string(message.Data) != want {
		t.Errorf("data %s, want %s", message.Data, want)
	}
	if message.Header.Get("event") != "charge 9007199254740993" {
		t.Errorf("headers %v", message.Header)
	}
}

func TestAMappedNullIsAnEmptyMessage(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	adapter := newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, map: "null"}`))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	if message := c.stored(t)[0]; len(message.Data) != 0 {
		t.Errorf("data %q", message.Data)
	}
}

func TestWhatCannotBeRenderedIsRejectedAndNotSent(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	for name, tool := range map[string]string{
		"map":               `{subject: charges.created, map: "error"}`,
		"control character": `{subject: charges.created, headers: {x: "{.payload.line}"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			got := newAdapter(t, spec(c.ClientURL(), "", tool)).Dispatch(t.Context(), request(`{"line":"a\r\nb"}`))
			dispatchtest.Expect(t, got, dispatch.Rejected, "unrenderable_request")
		})
	}
	if messages := c.stored(t); len(messages) != 0 {
		t.Errorf("%d messages", len(messages))
	}
}

func TestNothingIsSentToAStreamThatForgetsTheKeyTooSoon(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = 2 * time.Minute })
	adapter := adapterFor(t, c)

	refused := adapter.Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, refused, dispatch.NotSent, "duplicate_window_too_short")
	if !refused.OfOperation {
		t.Error("it speaks for the whole server, which may have other streams")
	}
	if messages := c.stored(t); len(messages) != 0 {
		t.Errorf("%d messages", len(messages))
	}

	c.update(t, func(config *jetstream.StreamConfig) { config.Duplicates = 24 * time.Hour })
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
}

func TestTheWindowIsThatOfTheStreamThatIsNamed(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	dispatchtest.Expect(t, newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, stream: OTHER}`)).Dispatch(t.Context(), request(`{}`)),
		dispatch.NotSent, "stream_not_found")
}

func TestAToolWhoseKeyNobodyNeedsToRecogniseSendsWhateverTheWindow(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = time.Second })
	for _, class := range []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.NonIdempotent} {
		adapter := newAdapter(t, ofClass(class, spec(c.ClientURL(), "", "subject: "+subject)))
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), intent(string(class))), dispatch.Completed, "")
	}
}
