package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
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
	for name, test := range map[string]struct{ settings, tool, says string }{
		"no brokers":       {`{}`, good, "brokers is missing"},
		"unknown setting":  {`{brokers: ["h:1"], nonsense: 1}`, good, "nonsense"},
		"no port":          {`{brokers: ["h:1", s3cret]}`, good, "brokers[1] is not host:port"},
		"a URL":            {`{brokers: ["kafka://u:s3cret@h:1"]}`, good, "brokers[0] is not host:port"},
		"a port too far":   {`{brokers: ["h:70000"]}`, good, "brokers[0] is not host:port"},
		"no password":      {`{brokers: ["h:1"], sasl: {mechanism: plain, username: u}}`, good, "username and a password"},
		"mechanism":        {`{brokers: ["h:1"], sasl: {mechanism: s3cret, username: u, password: s3cret}}`, good, "sasl.mechanism is none"},
		"no topic":         {`{brokers: ["h:1"]}`, `{}`, "topic is missing"},
		"unknown tool":     {`{brokers: ["h:1"]}`, `{topic: a, nonsense: 1}`, "nonsense"},
		"topic":            {`{brokers: ["h:1"]}`, `{topic: "{.payload.topic}"}`, "topic is no name"},
		"topic of dots":    {`{brokers: ["h:1"]}`, `{topic: ".."}`, "topic is no name"},
		"key":              {`{brokers: ["h:1"]}`, `{topic: a, key: "{"}`, "key: "},
		"the key's header": {`{brokers: ["h:1"]}`, `{topic: a, headers: {Idempotency-Key: x}}`, "set by the adapter itself"},
		"trace header":     {`{brokers: ["h:1"]}`, `{topic: a, headers: {traceparent: x}}`, "set by the adapter itself"},
		"header name":      {`{brokers: ["h:1"]}`, `{topic: a, headers: {"a b": x}}`, "not a valid header name"},
		"map":              {`{brokers: ["h:1"]}`, `{topic: a, map: "("}`, "map: jq does not parse"},
	} {
		wrong := spec(nil, "", test.tool)
		wrong.Settings = block(test.settings)
		_, err := kafka.New(wrong)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
			continue
		}
		if !strings.Contains(test.says, "nonsense") && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: repeats a value: %v", name, err)
		}
	}
}

func TestATopicCannotBeAskedForARecord(t *testing.T) {
	t.Parallel()
	asked := spec([]string{"h:1"}, "", "topic: a")
	asked.Tools["publish"] = dispatch.ToolSpec{Class: dispatch.ReadOnly, AnswersLookups: true, Settings: block("topic: a")}
	_, err := kafka.New(asked)
	var wrong *dispatch.ToolError
	if !errors.As(err, &wrong) || wrong.Operation != "publish" {
		t.Errorf("got %v", err)
	}
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string][]dispatch.Destination{
		"brokers: [\"a.example:9092\", \"b.example:9092\"]": {{Network: "tcp", Address: "a.example:9092"}, {Network: "tcp", Address: "b.example:9092"}},
		"{brokers: [\"a.example:9093\"], tls: true}":        {{Network: "tcp", Address: "a.example:9093", TLS: dispatch.ImplicitTLS}},
	} {
		adapter, err := kafka.New(dispatch.Spec{Settings: dispatchtest.Block(settings)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = adapter.Close() })
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", settings, got)
		}
	}
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
			if got := login("right"); got.Outcome != dispatch.Completed {
				t.Errorf("right: %+v", got)
			}
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
	if got.Outcome != dispatch.CredentialsRefused || got.ErrorClass != "sasl_authentication_failed" {
		t.Errorf("got %+v", got)
	}
}

func TestTLSIsThatOfTheNetwork(t *testing.T) {
	t.Parallel()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	authority := x509.NewCertPool()
	authority.AddCert(certified.Certificate())
	cluster := start(t, kfake.TLS(&tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS12}))

	trusting := spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic)
	trusting.Network = dispatch.NewNetwork(nil, &tls.Config{RootCAs: authority, MinVersion: tls.VersionTLS12})
	if got := newAdapter(t, trusting).Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.Completed {
		t.Errorf("trusting: %+v", got)
	}
	wary := newAdapter(t, spec(cluster.ListenAddrs(), "tls: true", "topic: "+topic))
	if got := wary.Dispatch(t.Context(), request(`{}`)); got.Outcome != dispatch.NotSent || got.ErrorClass != "tls" {
		t.Errorf("wary: %+v", got)
	}
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

// broker is a cluster of one that remembers every record that arrived.
type broker struct {
	cluster *kfake.Cluster
	door    *door

	mu        sync.Mutex
	situation dispatchtest.Situation
	messages  []dispatchtest.Message
}

func startBroker(t *testing.T) dispatchtest.Counterpart {
	b := &broker{door: &door{}, situation: dispatchtest.Answering}
	b.cluster = start(t, kfake.ListenFn(b.door.listen), kfake.EnableSASL(), kfake.Superuser("PLAIN", "drainer", password))
	b.cluster.ControlKey(int16(kmsg.Produce), b.produce)
	return dispatchtest.Counterpart{
		Settings: "{brokers: ['" + b.door.address + "'], sasl: {mechanism: plain, username: drainer, password: " + password + "}}",
		Tool:     "{topic: " + topic + ", headers: {memo: '{.business_scope}'}}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{password},
		Received: b.received,
		Enter:    func(situation dispatchtest.Situation) { b.enter(t, situation) },
	}
}

func (b *broker) enter(t *testing.T, situation dispatchtest.Situation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case situation == dispatchtest.Unreachable:
		b.door.shut()
	case b.situation == dispatchtest.Unreachable:
		b.door.open(t)
	}
	b.situation = situation
	b.door.babble(situation == dispatchtest.Babbling)
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
