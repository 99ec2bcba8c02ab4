package rabbitmq_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
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
	name    string // of both, and the routing key
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

// stored is every message that the queue has had so far.
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
	adapter, err := rabbitmq.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adapter.Close() })
	return adapter
}

// request is an intent of its own each time.
func request(payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: uuid.NewString(), StepID: "step-1", ToolName: "events/publish", BusinessScope: "invoice_442"}
	return dispatch.Request{Tuple: tuple, IdempotencyKey: tuple.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func expect(t *testing.T, got dispatch.Result, outcome dispatch.Outcome, class string) {
	t.Helper()
	if got.Outcome != outcome || got.ErrorClass != class {
		t.Errorf("%s %q (%+v), want %s %q", got.Outcome, got.ErrorClass, got.Problem, outcome, class)
	}
}

func long(length int) string { return strings.Repeat("x", length) }

// proxy stands between an adapter and the broker. It understands just enough
// of the frames that the broker sends to lose the answer to a message.
type proxy struct {
	address string
	target  string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	brokers  int                                     // connections that the broker has not closed yet
	answers  func(client net.Conn, ack []byte) error // nil passes confirms on
	toBroker *budget
	toClient *budget
}

func startProxy(t *testing.T, brokerURL string) *proxy {
	t.Helper()
	broker, err := url.Parse(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: "127.0.0.1:0", target: broker.Host, conns: map[net.Conn]bool{}}
	p.open(t)
	t.Cleanup(p.close)
	return p
}

// url is the broker's, by way of the proxy.
func (p *proxy) url(brokerURL string) string {
	broker, _ := url.Parse(brokerURL)
	broker.Host = p.address
	return broker.String()
}

// open listens where it listened before.
func (p *proxy) open(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		return
	}
	var listener net.Listener
	drainertest.Eventually(t, "the port is free again", func() (listens bool) {
		var err error
		listener, err = net.Listen("tcp", p.address)
		return err == nil
	})
	p.listener, p.address = listener, listener.Addr().String()
	go p.accept(listener)
}

// close closes all connections.
func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *proxy) brokersLeft() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.brokers
}

// lose says what happens to the confirms that come from now on.
func (p *proxy) lose(answers func(client net.Conn, ack []byte) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = answers
}

// cut ends the next connections after so many bytes in either direction.
func (p *proxy) cut(toBroker, toClient int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toBroker, p.toClient = &budget{left: toBroker}, &budget{left: toClient}
}

func (p *proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[broker] = true, true
		p.brokers++
		toBroker, toClient := p.toBroker, p.toClient
		p.mu.Unlock()
		go func() {
			_, _ = io.Copy(toBroker.limit(broker), client)
			_ = client.Close()
			_ = broker.(*net.TCPConn).CloseWrite()
		}()
		go func() {
			reader := bufio.NewReader(broker)
			_ = p.passFrames(client, toClient.limit(client), reader)
			_ = client.Close()
			_, _ = io.Copy(io.Discard, reader)
			_ = broker.Close()
			p.mu.Lock()
			p.brokers--
			p.mu.Unlock()
		}()
	}
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

// budget is how many bytes may pass in one direction.
type budget struct{ left int64 }

func (b *budget) limit(to io.Writer) io.Writer {
	if b == nil {
		return to
	}
	return &limited{to: to, left: b.left}
}

// limited writes what it may, to the byte, and then fails.
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
