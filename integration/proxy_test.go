package integration_test

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

// proxy stands between daemons and Postgres and loses some of what Postgres
// says. It reads the protocol's messages, so it knows what it loses.
type proxy struct {
	listener net.Listener
	server   string

	cuts  atomic.Int64 // replies to claims still to be lost, each with its connection
	muted atomic.Bool  // notifications are lost
	heard atomic.Int64 // notifications that came by

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	server, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, server: server.Host, conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() {
		_ = listener.Close()
		p.takeDown()
	})
	go p.accept()
	return p
}

// behind is the database's URL, through the proxy.
func (p *proxy) behind(t *testing.T, databaseURL string) string {
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

// takeDown cuts every connection and refuses new ones.
func (p *proxy) takeDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *proxy) bringUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(client)
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.register(client, server) {
		return
	}
	defer p.forget(client, server)
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	p.relay(client, server)
}

func (p *proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
	return !p.down
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.conns, conn)
	}
}

// The messages of Postgres that matter here.
const (
	authentication = 'R'
	notification   = 'A'
	dataRow        = 'D'
	ready          = 'Z'
)

// payloadMark is in the payload of every intent that a test enqueues, and only
// a claim reads payloads.
const payloadMark = `{"n": `

// relay passes on what Postgres says, one reply at a time: a reply is what
// comes before it is ready again, and by then it has committed.
func (p *proxy) relay(client io.Writer, server io.Reader) {
	from := bufio.NewReader(server)
	var reply bytes.Buffer
	claimed := false
	for {
		kind, message, err := readMessage(from)
		if err != nil {
			return
		}
		switch kind {
		case notification:
			p.heard.Add(1)
			if p.muted.Load() {
				continue
			}
		case dataRow:
			claimed = claimed || bytes.Contains(message, []byte(payloadMark))
		}
		reply.Write(message)
		if kind != authentication && kind != notification && kind != ready {
			continue
		}
		if claimed && p.cuts.Add(-1) >= 0 {
			return
		}
		if _, err := client.Write(reply.Bytes()); err != nil {
			return
		}
		reply.Reset()
		claimed = false
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
