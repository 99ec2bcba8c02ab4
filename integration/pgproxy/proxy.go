// Package pgproxy stands between daemons and Postgres and loses some of what
// they say to each other. It reads the protocol's messages, so it knows what
// it loses.
package pgproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy is one listener in front of one server at a time.
type Proxy struct {
	listener net.Listener

	Cuts        atomic.Int64 // replies to claims still to be lost, each with its connection
	LostCommits atomic.Int64 // replies to COMMIT still to be lost, each with its connection
	Muted       atomic.Bool  // notifications are lost
	Heard       atomic.Int64 // notifications that came by

	mu     sync.Mutex
	server string // where new connections lead
	down   bool
	links  map[*link]struct{}
	hold   atomic.Pointer[Hold] // nil for none
	ice    ice
}

// New listens on a free port of the loopback until the test ends.
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

// Behind is the database's URL, through the proxy.
func (p *Proxy) Behind(t testing.TB, databaseURL string) string {
	t.Helper()
	through, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	through.Host = p.listener.Addr().String()
	query := through.Query()
	query.Set("sslmode", "disable") // what is encrypted cannot be read
	through.RawQuery = query.Encode()
	return through.String()
}

// LeadTo makes new connections come to another server. Those that there are stay
// where they are.
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

// TakeDown cuts every connection and refuses new ones.
func (p *Proxy) TakeDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for l := range p.links {
		l.cut()
	}
}

// BringUp lets new connections through again.
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

// The messages of Postgres that matter here.
const (
	authentication = 'R'
	notification   = 'A'
	dataRow        = 'D'
	complete       = 'C'
	ready          = 'Z'
)

// payloadMark is in the payload of every intent that a test enqueues, and only
// a claim reads payloads.
const payloadMark = `{"n": `

// relay passes on what Postgres says, one reply at a time: a reply is what
// comes before it is ready again, and by then it has committed.
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
			p.Heard.Add(1)
			if p.Muted.Load() {
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
		if _, err := client.Write(reply.Bytes()); err != nil {
			return
		}
		reply.Reset()
		claimed, committed = false, false
	}
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
