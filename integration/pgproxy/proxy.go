// Package pgproxy is a proxy between daemons and Postgres that loses some of their messages. It reads the
// protocol's messages, so it can choose which to lose.
package pgproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Proxy is one listener in front of one server at a time.
type Proxy struct {
	listener net.Listener

	Cuts              atomic.Int64 // how many more replies to claims will be lost, each with its connection
	LostCommits       atomic.Int64 // how many more replies to COMMIT will be lost, each with its connection
	DropNotifications atomic.Bool  // notifications are lost
	Notifications     atomic.Int64 // number received, also the lost ones
	Bandwidth         atomic.Int64 // bytes a second from the server to each client; 0 for no limit
	Most              atomic.Int64 // size of the largest reply that reached its client, in bytes

	mu     sync.Mutex
	server string // the server of new connections
	down   bool
	links  map[*link]struct{}
	hold   atomic.Pointer[Hold] // nil for none
	ice    ice
}

// New returns a proxy on a free port of the loopback, which runs until the test ends.
func New(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, links: map[*link]struct{}{}}
	p.LeadTo(t, databaseURL)
	t.Cleanup(func() {
		_ = listener.Close()
		p.TakeDown()
		p.Thaw()
	})
	go p.accept()
	return p
}

// Behind returns the database's URL through the proxy.
func (p *Proxy) Behind(t testing.TB, databaseURL string) string {
	t.Helper()
	through, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	through.Host = p.listener.Addr().String()
	query := through.Query()
	query.Set("sslmode", "disable") // the proxy cannot read encrypted messages
	through.RawQuery = query.Encode()
	return through.String()
}

// LeadTo connects new connections to another server. Existing connections stay at theirs.
func (p *Proxy) LeadTo(t testing.TB, databaseURL string) {
	t.Helper()
	server, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server.Host
}

// TakeDown closes every connection and refuses new ones.
func (p *Proxy) TakeDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for l := range p.links {
		l.cut()
	}
}

// BringUp accepts new connections again.
func (p *Proxy) BringUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.leadsTo())
	if err != nil {
		return
	}
	defer server.Close()
	l := &link{client: client, server: server}
	if !p.register(l) {
		return
	}
	defer p.forget(l)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		p.forward(p.ice.over(l.to(server)), client)
		l.hangUp()
	}()
	p.relay(p.ice.over(l.to(client)), server)
	if l.silent.Load() {
		<-asked
	}
}

func (p *Proxy) leadsTo() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

func (p *Proxy) register(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	return !p.down
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// The server's messages that the proxy distinguishes.
const (
	authentication = 'R'
	notification   = 'A'
	dataRow        = 'D'
	complete       = 'C'
	ready          = 'Z'
)

// payloadMark is in the payload of every intent that a test enqueues. Only a claim reads payloads.
const payloadMark = `{"n": `

// relay passes on the server's messages, one reply at a time. A reply ends when the server is ready again, and at
// that point it has committed.
func (p *Proxy) relay(client io.Writer, server io.Reader) {
	from := bufio.NewReader(server)
	var reply bytes.Buffer
	claimed, committed := false, false
	for {
		kind, message, err := readMessage(from)
		if err != nil {
			return
		}
		switch kind {
		case notification:
			p.Notifications.Add(1)
			if p.DropNotifications.Load() {
				continue
			}
		case dataRow:
			claimed = claimed || bytes.Contains(message, []byte(payloadMark))
		case complete:
			committed = committed || bytes.Contains(message, []byte("COMMIT\x00"))
		}
		reply.Write(message)
		if kind != authentication && kind != notification && kind != ready {
			continue
		}
		if (claimed && p.Cuts.Add(-1) >= 0) || (committed && p.LostCommits.Add(-1) >= 0) {
			return
		}
		if err := p.deliver(client, reply.Bytes()); err != nil {
			return
		}
		reply.Reset()
		claimed, committed = false, false
	}
}

// deliver slows a large reply down if the bandwidth is limited.
func (p *Proxy) deliver(client io.Writer, reply []byte) error {
	const piece = 64 << 10
	size := int64(len(reply))
	for len(reply) > 0 {
		part := reply[:min(piece, len(reply))]
		if _, err := client.Write(part); err != nil {
			return err
		}
		if rate := p.Bandwidth.Load(); rate > 0 && size > piece {
			time.Sleep(time.Duration(len(part)) * time.Second / time.Duration(rate))
		}
		reply = reply[len(part):]
	}
	for most := p.Most.Load(); size > most && !p.Most.CompareAndSwap(most, size); most = p.Most.Load() {
	}
	return nil
}

func readMessage(from io.Reader) (kind byte, message []byte, err error) {
	var header [5]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return 0, nil, err
	}
	message = make([]byte, 1+binary.BigEndian.Uint32(header[1:]))
	copy(message, header[:])
	_, err = io.ReadFull(from, message[len(header):])
	return header[0], message, err
}

// link is one connection through the proxy. A silent link carries nothing any more, and neither end notices.
type link struct {
	client, server net.Conn
	silent         atomic.Bool
}

// Silence makes all present connections half-open: they stay open, and every message on them is lost. It returns
// their number. New connections work.
func (p *Proxy) Silence() (links int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.silent.Store(true)
	}
	return len(p.links)
}

// hangUp closes the connection to the server, unless the link is silent.
func (l *link) hangUp() {
	if !l.silent.Load() {
		_ = l.server.Close()
	}
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// to returns a writer to one end of the link, which drops everything once the link is silent.
func (l *link) to(end io.Writer) io.Writer { return reachable{l, end} }

type reachable struct {
	link *link
	end  io.Writer
}

func (r reachable) Write(raw []byte) (int, error) {
	if r.link.silent.Load() {
		return len(raw), nil
	}
	return r.end.Write(raw)
}

// The client's messages that the proxy distinguishes.
const (
	parse    = 'P'
	bind     = 'B'
	describe = 'D'
	execute  = 'E'
	query    = 'Q'
	syncLast = 'S'
)

// passGreeting passes on the first message of a connection, the only message without a kind.
func passGreeting(server io.Writer, client io.Reader) error {
	var length [4]byte
	if _, err := io.ReadFull(client, length[:]); err != nil {
		return err
	}
	greeting := make([]byte, binary.BigEndian.Uint32(length[:]))
	copy(greeting, length[:])
	if _, err := io.ReadFull(client, greeting[len(length):]); err != nil {
		return err
	}
	_, err := server.Write(greeting)
	return err
}

// dialogue follows a client through its transactions. A pipeline without BEGIN commits at its end.
type dialogue struct {
	prepared map[string]string // SQL by the statement's name
	running  []string          // SQL of the open transaction
	explicit bool              // it began with BEGIN
}

// committedBy returns the statements that a message commits.
func (d *dialogue) committedBy(m message) []string {
	switch m.kind {
	case parse:
		d.prepare(texts(m.raw[5:], 2))
	case bind:
		d.running = append(d.running, d.prepared[texts(m.raw[5:], 2)[1]])
	case query:
		return d.simple(strings.ToLower(texts(m.raw[5:], 1)[0]))
	case syncLast:
		if !d.explicit {
			return d.end()
		}
	}
	return nil
}

func (d *dialogue) prepare(nameAndSQL []string) {
	if d.prepared == nil {
		d.prepared = map[string]string{}
	}
	d.prepared[nameAndSQL[0]] = nameAndSQL[1]
}

func (d *dialogue) simple(sql string) []string {
	switch {
	case strings.HasPrefix(sql, "begin"):
		d.explicit = true
	case strings.HasPrefix(sql, "commit"), strings.HasPrefix(sql, "rollback"):
		d.explicit = false
		return d.end()
	}
	return nil
}

func (d *dialogue) end() []string {
	ended := d.running
	d.running = nil
	return ended
}

// texts returns the first n zero-terminated strings.
func texts(raw []byte, n int) []string {
	texts := make([]string, n)
	for i := range texts {
		text, rest, _ := bytes.Cut(raw, []byte{0})
		texts[i], raw = string(text), rest
	}
	return texts
}

// Hold delays commits: the server has executed everything before the commit and keeps its locks, but has not
// received the commit.
type Hold struct {
	Caught chan struct{} // closed once a commit is delayed

	text     string
	released chan struct{}
	catch    func()
	release  func()
}

// HoldCommits delays, from now on, the commit of every transaction that contains a statement with that text. If
// the client leaves meanwhile, nothing is committed.
func (p *Proxy) HoldCommits(text string) *Hold {
	h := &Hold{Caught: make(chan struct{}), text: text, released: make(chan struct{})}
	h.catch = sync.OnceFunc(func() { close(h.Caught) })
	h.release = sync.OnceFunc(func() { close(h.released) })
	p.hold.Store(h)
	return h
}

// Release lets the delayed commits pass, and all later ones.
func (h *Hold) Release() { h.release() }

func (h *Hold) concerns(statements []string) bool {
	return h != nil && slices.ContainsFunc(statements, func(sql string) bool { return strings.Contains(sql, h.text) })
}

// keep waits for the release. It returns false if the client left.
func (h *Hold) keep(more <-chan message) bool {
	h.catch()
	select {
	case <-h.released:
		return true
	case <-more: // a client that waits for a commit only sends a message to end the connection
		return false
	}
}

type message struct {
	kind byte
	raw  []byte // with kind and length
}

// forward passes on the client's messages, and a pipeline only as a whole. A server older than version 17 keeps
// the locks of an incomplete pipeline until the connection ends, and a silent connection does not end.
func (p *Proxy) forward(server io.Writer, client io.Reader) {
	from := bufio.NewReader(client)
	if err := passGreeting(server, from); err != nil {
		return
	}
	said := make(chan message)
	go func() {
		defer close(said)
		for {
			kind, raw, err := readMessage(from)
			if err != nil {
				return
			}
			said <- message{kind, raw}
		}
	}()
	defer func() {
		// The client may wait for the server to close the connection first, and the server learns only after this
		// return that the client has left.
		go func() {
			for range said { // unblocks the reader
			}
		}()
	}()
	var spoken dialogue
	var pipeline []byte
	for next := range said {
		statements := spoken.committedBy(next)
		if h := p.hold.Load(); h.concerns(statements) {
			if _, err := server.Write(pipeline); err != nil {
				return
			}
			if pipeline = nil; !h.keep(said) {
				return
			}
		}
		pipeline = append(pipeline, next.raw...)
		if next.kind == parse || next.kind == bind || next.kind == describe || next.kind == execute {
			continue // the end of the pipeline follows
		}
		if _, err := server.Write(pipeline); err != nil {
			return
		}
		pipeline = pipeline[:0]
	}
}

// Freeze stops all data in both directions and closes no connection, like a network that loses every packet. Data
// written meanwhile waits.
func (p *Proxy) Freeze() { p.ice.freeze() }

// Thaw delivers the data that waited.
func (p *Proxy) Thaw() { p.ice.thaw() }

// ice blocks writers while it is frozen.
type ice struct {
	mu     sync.Mutex
	melted chan struct{} // nil while not frozen
}

func (i *ice) freeze() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.melted == nil {
		i.melted = make(chan struct{})
	}
}

func (i *ice) thaw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.melted != nil {
		close(i.melted)
		i.melted = nil
	}
}

func (i *ice) wait() {
	i.mu.Lock()
	melted := i.melted
	i.mu.Unlock()
	if melted != nil {
		<-melted
	}
}

func (i *ice) over(to io.Writer) io.Writer { return icy{i, to} }

// icy is a writer that waits while the ice is frozen.
type icy struct {
	ice *ice
	to  io.Writer
}

func (w icy) Write(raw []byte) (int, error) {
	w.ice.wait()
	return w.to.Write(raw)
}

// RefuseSettings returns the URL of a proxy that accepts only those start-up parameters that PgBouncer accepts.
func RefuseSettings(t testing.TB, databaseURL string, refusals *atomic.Int64) string {
	t.Helper()
	behind, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	through := *behind
	through.Host = dispatchtest.OpenGate(t, behind.Host, func(client, server net.Conn) { poolOne(client, server, refusals) }).Address
	return through.String()
}

func poolOne(client, server net.Conn, refusals *atomic.Int64) {
	backend := pgproto3.NewBackend(client, client)
	first, err := backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	for name := range startup.Parameters {
		switch name {
		case "user", "database", "client_encoding", "datestyle", "timezone", "standard_conforming_strings", "application_name":
		default:
			refusals.Add(1)
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = backend.Flush()
			return
		}
	}
	message, err := startup.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(message); err == nil {
		dispatchtest.Carry(client, server, math.MaxInt64, math.MaxInt64)
	}
}
