package nats_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/nats"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) {
	// The library never notices a connection that ends between subscribing to its
	// answers and registering for its end (nats.go v1.55.0).
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

const (
	subject = "charges.created"
	stream  = "CHARGES"
)

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("events/publish", "step-1", payload)
}

// intent returns a request with a key of its own.
func intent(step string) dispatch.Request {
	return dispatchtest.Intent("events/publish", step, `{"step":"`+step+`"}`)
}

// counterpart is a server, with a connection that inspects it.
type counterpart struct {
	*server.Server
	conn *natsgo.Conn
	js   jetstream.JetStream
}

func start(t *testing.T, change ...func(*server.Options)) *counterpart {
	t.Helper()
	options := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true}
	for _, change := range change {
		change(options)
	}
	started, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	go started.Start()
	t.Cleanup(func() {
		started.Shutdown()
		started.WaitForShutdown()
	})
	if !started.ReadyForConnections(drainertest.Patience) {
		t.Fatal("the server does not start")
	}
	return &counterpart{Server: started}
}

func startWithStream(t *testing.T, change ...func(*jetstream.StreamConfig)) *counterpart {
	t.Helper()
	c := start(t)
	c.look(t)
	c.create(t, change...)
	return c
}

// create makes a stream on charges.> that recognises keys for a day.
func (c *counterpart) create(t *testing.T, change ...func(*jetstream.StreamConfig)) {
	t.Helper()
	config := jetstream.StreamConfig{Name: stream, Subjects: []string{"charges.>"}, Duplicates: 24 * time.Hour}
	for _, change := range change {
		change(&config)
	}
	if _, err := c.js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

func (c *counterpart) look(t *testing.T, options ...natsgo.Option) {
	t.Helper()
	conn, err := natsgo.Connect(c.ClientURL(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	c.conn, c.js = conn, js
}

// subscribe receives every published message, whether or not a stream takes it.
func (c *counterpart) subscribe(t *testing.T, receive natsgo.MsgHandler) {
	t.Helper()
	if _, err := c.conn.Subscribe(subject, receive); err != nil {
		t.Fatal(err)
	}
	if err := c.conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (c *counterpart) update(t *testing.T, change func(*jetstream.StreamConfig)) {
	t.Helper()
	current, err := c.js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	config := current.CachedInfo().Config
	change(&config)
	if _, err := c.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
}

// stored returns every message of the stream.
func (c *counterpart) stored(t *testing.T) []*jetstream.RawStreamMsg {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), drainertest.Patience)
	defer cancel()
	read, err := c.js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	var messages []*jetstream.RawStreamMsg
	for sequence := uint64(1); sequence <= read.CachedInfo().State.LastSeq; sequence++ {
		message, err := read.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, message)
	}
	return messages
}

func spec(url, settings, tool string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "events",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("urls: [" + url + "]\n" + settings),
		Tools: map[string]dispatch.ToolSpec{
			"publish": {Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, Settings: dispatchtest.Block(tool)},
		},
	}
}

// ofClass sets the tool's class to one whose keys the stream need not recognise.
func ofClass(class dispatch.Class, spec dispatch.Spec) dispatch.Spec {
	spec.Tools["publish"] = dispatch.ToolSpec{Class: class, Settings: spec.Tools["publish"].Settings}
	return spec
}

func newAdapter(t *testing.T, spec dispatch.Spec) *nats.Adapter {
	t.Helper()
	return dispatchtest.Build(t, nats.New, spec)
}

func adapterFor(t *testing.T, c *counterpart) *nats.Adapter {
	t.Helper()
	return newAdapter(t, spec(c.ClientURL(), "", "subject: "+subject))
}
