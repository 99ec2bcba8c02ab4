package kafka_test

import (
	"encoding/json"
	"errors"
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
