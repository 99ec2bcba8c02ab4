package kafka_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/kafka"
)

func TestAWrongConfigurationIsRefusedWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	const good = "topic: charges"
	dispatchtest.Refuses(t, kafka.Kind(), dispatchtest.Mistakes{
		"no brokers":       {`{}`, good, "brokers is missing"},
		"unknown setting":  {`{brokers: ["h:1"], nonsense: 1}`, good, "not what *kafka.Settings takes"},
		"no port":          {`{brokers: ["h:1", canary]}`, good, "brokers[1] is not host:port"},
		"a URL":            {`{brokers: ["kafka://u:canary@h:1"]}`, good, "brokers[0] is not host:port"},
		"a port too far":   {`{brokers: ["h:70000"]}`, good, "brokers[0] is not host:port"},
		"no password":      {`{brokers: ["h:1"], sasl: {mechanism: plain, username: u}}`, good, "username and a password"},
		"mechanism":        {`{brokers: ["h:1"], sasl: {mechanism: canary, username: u, password: canary}}`, good, "sasl.mechanism is none"},
		"no topic":         {`{brokers: ["h:1"]}`, `{}`, "topic is missing"},
		"unknown tool":     {`{brokers: ["h:1"]}`, `{topic: a, nonsense: 1}`, "not what *kafka.Tool takes"},
		"topic":            {`{brokers: ["h:1"]}`, `{topic: "{.payload.topic}"}`, "topic is no name"},
		"topic of dots":    {`{brokers: ["h:1"]}`, `{topic: ".."}`, "topic is no name"},
		"key":              {`{brokers: ["h:1"]}`, `{topic: a, key: "{"}`, "key: "},
		"the key's header": {`{brokers: ["h:1"]}`, `{topic: a, headers: {Idempotency-Key: x}}`, "set by the adapter itself"},
		"trace header":     {`{brokers: ["h:1"]}`, `{topic: a, headers: {traceparent: x}}`, "set by the adapter itself"},
		"header name":      {`{brokers: ["h:1"]}`, `{topic: a, headers: {"a b": x}}`, "not a valid header name"},
		"map":              {`{brokers: ["h:1"]}`, `{topic: a, map: "("}`, "map: jq does not parse"},
	})
}

func TestATopicCannotBeAskedForARecord(t *testing.T) {
	t.Parallel()
	asked := spec([]string{"h:1"}, "", "topic: a")
	asked.Tools["publish"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: dispatchtest.Block("topic: a")}
	_, err := kafka.New(asked)
	var wrong *dispatch.ToolError
	if !errors.As(err, &wrong) || wrong.Operation != "publish" {
		t.Errorf("got %v", err)
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, kafka.Kind(), map[string][]dispatch.Destination{
		"brokers: [\"a.example:9092\", \"b.example:9092\"]": {{Network: "tcp", Address: "a.example:9092"}, {Network: "tcp", Address: "b.example:9092"}},
		"{brokers: [\"a.example:9093\"], tls: true}":        {{Network: "tcp", Address: "a.example:9093", TLS: dispatch.ImplicitTLS}},
	})
}

func TestALoginIsRightOrNothingIsSent(t *testing.T) {
	t.Parallel()
	for mechanism, known := range map[string]string{
		"plain": "PLAIN", "scram-sha-256": "SCRAM-SHA-256", "scram-sha-512": "SCRAM-SHA-512",
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			cluster := start(t, kfake.EnableSASL(), kfake.Superuser(known, "drainer", "right"))
			login := func(password string) dispatch.Result {
				settings := "sasl: {mechanism: " + mechanism + ", username: drainer, password: " + password + "}"
				return newAdapter(t, spec(cluster.ListenAddrs(), settings, "topic: "+topic)).Dispatch(t.Context(), request(`{}`))
			}
			dispatchtest.Expect(t, login("right"), dispatch.Completed, "")
			if got := login("wrong"); got.Outcome != dispatch.NotSent {
				t.Errorf("wrong: %+v", got)
			}
			if got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent {
				t.Errorf("no login: %+v", got)
			}
		})
	}
}

func TestABrokersWordForAWrongPasswordIsKept(t *testing.T) {
	t.Parallel()
	cluster := start(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "drainer", "right"))
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		response.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return response, nil, true
	})
	settings := "sasl: {mechanism: plain, username: drainer, password: wrong}"
	got := newAdapter(t, spec(cluster.ListenAddrs(), settings, "topic: "+topic)).Dispatch(t.Context(), request(`{}`))
	dispatchtest.Expect(t, got, dispatch.CredentialsRefused, "sasl_authentication_failed")
}

func TestTLSIsThatOfTheNetwork(t *testing.T) {
	t.Parallel()
	certificate, trusted := dispatchtest.Certificate(t)
	cluster := start(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}))

	trusting := spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic)
	trusting.Network = dispatch.NewNetwork(nil, trusted)
	dispatchtest.Expect(t, newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	wary := newAdapter(t, spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic))
	dispatchtest.Expect(t, wary.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "tls")
	if got := adapterFor(t, cluster).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent {
		t.Errorf("in the clear: %+v", got)
	}
}

func TestTheKafkaAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NonIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			dispatchtest.Conform(t, dispatchtest.Subject{
				Kind:  kafka.Kind(),
				Class: class,
				Start: startBroker,
				Cannot: map[dispatchtest.Situation]string{
					dispatchtest.Busy: "a broker knows no keys, so none is busy with one",
				},
			})
		})
	}
}

const password = "password-51c2e0"

// broker is a cluster of one broker that remembers every record that arrived.
type broker struct {
	cluster *kfake.Cluster
	gate    *dispatchtest.Gate

	mu        sync.Mutex
	situation dispatchtest.Situation
	messages  []dispatchtest.Message
}

func startBroker(t *testing.T) dispatchtest.Counterpart {
	b := &broker{situation: dispatchtest.Answering}
	gate, advertised := gated(t, b.carry)
	b.gate, b.cluster = gate, start(t, advertised, kfake.EnableSASL(), kfake.Superuser("PLAIN", "drainer", password))
	b.cluster.ControlKey(int16(kmsg.Produce), b.produce)
	return dispatchtest.Counterpart{
		Settings: "{brokers: ['" + b.gate.Address + "'], sasl: {mechanism: plain, username: drainer, password: " + password + "}}",
		Tool:     "{topic: " + topic + ", headers: {memo: '{.business_scope}'}}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{password},
		Received: b.received,
		Enter:    b.enter,
	}
}

func (b *broker) enter(situation dispatchtest.Situation) {
	if situation == dispatchtest.Unreachable {
		b.gate.Shut()
	} else {
		b.gate.Open()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.situation = situation
}

// carry passes bytes on, and makes the broker's output unreadable in the situation Babbling.
func (b *broker) carry(client, broker net.Conn) {
	dispatchtest.Carry(babbling{client, b}, broker, math.MaxInt64, math.MaxInt64)
}

type babbling struct {
	net.Conn
	broker *broker
}

func (c babbling) Write(raw []byte) (int, error) {
	c.broker.mu.Lock()
	babbles := c.broker.situation == dispatchtest.Babbling
	c.broker.mu.Unlock()
	if !babbles {
		return c.Conn.Write(raw)
	}
	if _, err := c.Conn.Write([]byte("220 mail.example ESMTP\r\n")); err != nil {
		return 0, err
	}
	return len(raw), nil
}

func (b *broker) received() []dispatchtest.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.messages)
}

func (b *broker) produce(request kmsg.Request) (kmsg.Response, error, bool) {
	b.cluster.KeepControl()
	b.mu.Lock()
	defer b.mu.Unlock()
	produce := request.(*kmsg.ProduceRequest)
	b.messages = append(b.messages, messagesOf(produce)...)
	switch b.situation {
	case dispatchtest.Throttling:
		return refusing(produce, kerr.NotEnoughReplicas.Code), nil, true
	case dispatchtest.Rejecting:
		return refusing(produce, kerr.PolicyViolation.Code), nil, true
	case dispatchtest.Severing:
		return nil, errors.New("hang up"), true
	case dispatchtest.Silent:
		return nil, nil, true
	}
	return nil, nil, false
}

func messagesOf(produce *kmsg.ProduceRequest) (messages []dispatchtest.Message) {
	for _, topic := range produce.Topics {
		for _, partition := range topic.Partitions {
			var batch kmsg.RecordBatch
			var record kmsg.Record
			if err := errors.Join(batch.ReadFrom(partition.Records), record.ReadFrom(batch.Records)); err != nil {
				continue
			}
			message := dispatchtest.Message{Body: record.Value}
			for _, header := range record.Headers {
				if header.Key == "idempotency-key" {
					message.Key = string(header.Value)
				}
			}
			messages = append(messages, message)
		}
	}
	return messages
}
