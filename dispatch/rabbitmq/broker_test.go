package rabbitmq_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/rabbitmq"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// topology is an exchange of the test's own, bound to a queue.
type topology struct {
	name    string // the name of both, and the routing key
	channel *amqp.Channel

	mu       sync.Mutex
	received []amqp.Delivery
}

func declare(t *testing.T, broker *drainertest.Broker) *topology {
	t.Helper()
	connection, err := amqp.Dial(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	o := &topology{name: "test-" + uuid.NewString(), channel: channel}
	o.exchange(t, false)
	if _, err := channel.QueueDeclare(o.name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	o.bind(t)
	t.Cleanup(func() {
		_, _ = channel.QueueDelete(o.name, false, false, false)
		_ = channel.ExchangeDelete(o.name, false, false)
	})
	return o
}

// exchange declares the exchange again; clients may not publish to an internal
// one.
func (o *topology) exchange(t *testing.T, internal bool) {
	t.Helper()
	if err := o.channel.ExchangeDelete(o.name, false, false); err != nil {
		t.Fatal(err)
	}
	if err := o.channel.ExchangeDeclare(o.name, "direct", true, false, internal, false, nil); err != nil {
		t.Fatal(err)
	}
}

func (o *topology) bind(t *testing.T) {
	t.Helper()
	if err := o.channel.QueueBind(o.name, o.name, o.name, false, nil); err != nil {
		t.Fatal(err)
	}
}

func (o *topology) unbind(t *testing.T) {
	t.Helper()
	if err := o.channel.QueueUnbind(o.name, o.name, o.name, nil); err != nil {
		t.Fatal(err)
	}
}

// stored returns every message that the queue has had so far.
func (o *topology) stored(t *testing.T) []amqp.Delivery {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		message, ok, err := o.channel.Get(o.name, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return o.received[:len(o.received):len(o.received)]
		}
		o.received = append(o.received, message)
	}
}

func (o *topology) tool() string { return "exchange: " + o.name + "\nrouting_key: " + o.name }

func spec(url, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "events",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("url: " + url),
		Tools:    map[string]dispatch.ToolSpec{"publish": {Class: dispatch.KeyIdempotent, Settings: dispatchtest.Block(tool)}},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *rabbitmq.Adapter {
	t.Helper()
	return dispatchtest.Build(t, rabbitmq.New, spec)
}

// ready returns an adapter that publishes to a topology of the test's own. more has further settings of its tool.
func ready(t *testing.T, more ...string) (*topology, *rabbitmq.Adapter) {
	t.Helper()
	broker := drainertest.RabbitMQ(t)
	topology := declare(t, broker)
	return topology, newAdapter(t, spec(broker.URL, topology.tool()+strings.Join(more, "")))
}

// request returns a new intent each time.
func request(payload string) dispatch.Request {
	return dispatchtest.Intent("events/publish", uuid.NewString(), payload)
}

func long(length int) string { return strings.Repeat("x", length) }

// proxy is between an adapter and the broker. It understands just enough of the broker's frames to lose the answer
// to a message.
type proxy struct {
	*dispatchtest.Gate

	mu       sync.Mutex
	brokers  int                                     // connections that the broker has not closed yet
	answers  func(client net.Conn, ack []byte) error // nil passes confirms on
	toBroker int64                                   // bytes that the next connection may carry
	toClient int64
}

func startProxy(t *testing.T, brokerURL string) *proxy {
	t.Helper()
	broker, err := url.Parse(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{toBroker: math.MaxInt64, toClient: math.MaxInt64}
	p.Gate = dispatchtest.OpenGate(t, broker.Host, p.carry)
	return p
}

// url returns the broker's URL by way of the proxy.
func (p *proxy) url(brokerURL string) string {
	broker, _ := url.Parse(brokerURL)
	broker.Host = p.Address
	return broker.String()
}

func (p *proxy) brokersLeft() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.brokers
}

// lose sets how later confirms are handled.
func (p *proxy) lose(answers func(client net.Conn, ack []byte) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = answers
}

// cut ends later connections after these numbers of bytes in the two directions.
func (p *proxy) cut(toBroker, toClient int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toBroker, p.toClient = toBroker, toClient
}

func (p *proxy) carry(client, broker net.Conn) {
	p.mu.Lock()
	p.brokers++
	toBroker, toClient := p.toBroker, p.toClient
	p.mu.Unlock()
	go func() {
		_, _ = io.CopyN(broker, client, toBroker)
		_ = client.Close()
		_ = broker.(*net.TCPConn).CloseWrite()
	}()
	reader := bufio.NewReader(broker)
	_ = p.passFrames(client, &limited{to: client, left: toClient}, reader)
	_ = client.Close()
	_, _ = io.Copy(io.Discard, reader)
	p.mu.Lock()
	p.brokers--
	p.mu.Unlock()
}

const (
	methodFrame = 1
	frameHeader = 7 // type, channel, size
	classBasic  = 60
	methodAck   = 80
)

func (p *proxy) passFrames(client net.Conn, to io.Writer, broker *bufio.Reader) error {
	for {
		frame := make([]byte, frameHeader)
		if _, err := io.ReadFull(broker, frame); err != nil {
			return err
		}
		rest := make([]byte, binary.BigEndian.Uint32(frame[3:])+1)
		if _, err := io.ReadFull(broker, rest); err != nil {
			return err
		}
		frame = append(frame, rest...)
		p.mu.Lock()
		answers := p.answers
		p.mu.Unlock()
		if answers != nil && isAck(frame) {
			if err := answers(client, frame); err != nil {
				return err
			}
			continue
		}
		if _, err := to.Write(frame); err != nil {
			return err
		}
	}
}

func isAck(frame []byte) bool {
	payload := frame[frameHeader:]
	return frame[0] == methodFrame && binary.BigEndian.Uint16(payload) == classBasic && binary.BigEndian.Uint16(payload[2:]) == methodAck
}

func sever(net.Conn, []byte) error { return io.EOF }

func swallow(net.Conn, []byte) error { return nil }

func babble(client net.Conn, _ []byte) error {
	_, err := io.WriteString(client, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	return err
}

// limited writes exactly left bytes, and then fails.
type limited struct {
	to   io.Writer
	left int64
}

func (l *limited) Write(data []byte) (int, error) {
	if int64(len(data)) <= l.left {
		l.left -= int64(len(data))
		return l.to.Write(data)
	}
	n, _ := l.to.Write(data[:l.left])
	l.left = 0
	return n, io.ErrShortWrite
}
