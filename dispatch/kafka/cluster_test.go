package kafka_test

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/kafka"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "charges"

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("events/publish", "step-1", payload)
}

// intent returns a request with a key of its own.
func intent(step string) dispatch.Request {
	return dispatchtest.Intent("events/publish", step, `{"step":"`+step+`"}`)
}

func start(t *testing.T, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(4, topic)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func spec(brokers []string, settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "events",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("brokers: [" + strings.Join(brokers, ", ") + "]\n" + settings),
		Tools: map[string]dispatch.ToolSpec{
			"publish": {Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, Settings: dispatchtest.Block(tool)},
		},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *kafka.Adapter {
	t.Helper()
	return dispatchtest.Build(t, kafka.New, spec)
}

// adapterFor returns an adapter that publishes to the seeded topic.
func adapterFor(t *testing.T, cluster *kfake.Cluster) *kafka.Adapter {
	t.Helper()
	return newAdapter(t, spec(cluster.ListenAddrs(), "", "topic: "+topic))
}

func count(cluster *kfake.Cluster, topic string) (records int64) {
	for _, partition := range cluster.PartitionInfos(topic) {
		records += partition.HighWatermark
	}
	return records
}

// stored returns every record of the topic.
func stored(t *testing.T, cluster *kfake.Cluster, options ...kgo.Opt) []*kgo.Record {
	t.Helper()
	consumer, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), drainertest.Patience)
	defer cancel()
	expected := int(count(cluster, topic))
	var records []*kgo.Record
	for len(records) < expected {
		fetched := consumer.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			t.Fatalf("reading the topic back: %v", err)
		}
		records = append(records, fetched.Records()...)
	}
	return records
}

func header(record *kgo.Record, name string) string {
	for _, header := range record.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}

// dispatchAndLeave dispatches with a deadline of a few milliseconds.
func dispatchAndLeave(t *testing.T, adapter *kafka.Adapter, request dispatch.Request) dispatch.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rand.N(6*time.Millisecond))
	defer cancel()
	return adapter.Dispatch(ctx, request).Outcome
}

// gated opens a gate before the broker, and makes the broker advertise the gate's address.
func gated(t *testing.T, carry func(client, broker net.Conn)) (*dispatchtest.Gate, kfake.Opt) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := dispatchtest.OpenGate(t, inner.Addr().String(), carry)
	address, err := net.ResolveTCPAddr("tcp", gate.Address)
	if err != nil {
		t.Fatal(err)
	}
	return gate, kfake.ListenFn(func(string, string) (net.Listener, error) { return advertised{inner, address}, nil })
}

type advertised struct {
	net.Listener
	address net.Addr
}

func (a advertised) Addr() net.Addr { return a.address }
