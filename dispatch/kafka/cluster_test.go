package kafka_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/kafka"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// block is configuration as a user writes it.
type block string

func (b block) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}

const topic = "charges"

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "events/publish", BusinessScope: "invoice_442"}

func request(payload string) dispatch.Request {
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

// intent is a request with a key of its own.
func intent(step string) dispatch.Request {
	own := tuple
	own.StepID = step
	return dispatch.Request{Tuple: own, IdempotencyKey: own.IdempotencyKey(), Payload: json.RawMessage(`{"step":"` + step + `"}`), Attempt: 1}
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
		Settings: block("brokers: [" + strings.Join(brokers, ", ") + "]\n" + settings),
		Tools: map[string]dispatch.ToolSpec{
			"publish": {Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, Settings: block(tool)},
		},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *kafka.Adapter {
	t.Helper()
	adapter, err := kafka.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

// adapterFor publishes to the seeded topic.
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

// stored reads every record of the topic.
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

// dispatchAndLeave ends the dispatch within a few milliseconds of its start.
func dispatchAndLeave(t *testing.T, adapter *kafka.Adapter, request dispatch.Request) dispatch.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rand.N(6*time.Millisecond))
	defer cancel()
	return adapter.Dispatch(ctx, request).Outcome
}

// door is the listener of a broker that can go away and come back: once it is
// shut, its address refuses connections and every connection through it is
// closed.
type door struct {
	mu      sync.Mutex
	address string
	inner   net.Listener
	conns   []*doorConn
	came    chan net.Conn
	done    chan struct{}
	once    sync.Once
	babbles bool
}

func (d *door) listen(network, address string) (net.Listener, error) {
	inner, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	d.address, d.came, d.done = inner.Addr().String(), make(chan net.Conn), make(chan struct{})
	d.admit(inner)
	return d, nil
}

func (d *door) admit(inner net.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inner = inner
	go func() {
		for {
			conn, err := inner.Accept()
			if err != nil {
				return
			}
			through := &doorConn{Conn: conn, door: d}
			d.mu.Lock()
			d.conns = append(d.conns, through)
			d.mu.Unlock()
			select {
			case d.came <- through:
			case <-d.done:
				_ = conn.Close()
			}
		}
	}()
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.inner.Close()
	for _, conn := range d.conns {
		_ = conn.Close()
	}
	d.conns = nil
}

func (d *door) open(t *testing.T) {
	inner, err := net.Listen("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	d.admit(inner)
}

// babble makes what the broker writes unreadable, or readable again.
func (d *door) babble(babbles bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.babbles = babbles
}

func (d *door) isBabbling() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.babbles
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.came:
		return conn, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

func (d *door) Addr() net.Addr {
	address, err := net.ResolveTCPAddr("tcp", d.address)
	if err != nil {
		panic(err)
	}
	return address
}

func (d *door) Close() error {
	d.once.Do(func() {
		close(d.done)
		d.shut()
	})
	return nil
}

type doorConn struct {
	net.Conn
	door *door
}

func (c *doorConn) Write(raw []byte) (int, error) {
	if !c.door.isBabbling() {
		return c.Conn.Write(raw)
	}
	if _, err := c.Conn.Write([]byte("220 mail.example ESMTP\r\n")); err != nil {
		return 0, err
	}
	return len(raw), nil
}
