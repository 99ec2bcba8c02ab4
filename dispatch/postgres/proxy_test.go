package postgres_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands between the adapter and a real server.
type proxy struct {
	t        *testing.T
	server   string
	listener net.Listener
	url      string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	onUp  func(session *session, octets []byte) bool // false ends the session; nil passes all
	limit func() int64                               // octets that a new session may carry, both ways; nil is no limit
}

// session is one connection through the proxy.
type session struct {
	client, server net.Conn
	mute           bool // nothing goes back any more
	mu             sync.Mutex
	left           int64
	limited        bool
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, server: u.Host, conns: map[net.Conn]struct{}{}}
	p.listen("127.0.0.1:0")
	u.Host = p.listener.Addr().String()
	p.url = u.String()
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) listen(address string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = listener
	p.mu.Unlock()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
}

// cut hangs up on everybody and answers nobody.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener.Close()
	for conn := range p.conns {
		conn.Close()
	}
}

// mend answers again.
func (p *proxy) mend() {
	p.listen(p.listener.Addr().String())
}

func (p *proxy) intercept(onUp func(*session, []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onUp = onUp
}

// limited cuts sessions after as many octets as next says.
func (p *proxy) limited(next func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = next
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	s := &session{client: client, server: server}
	p.mu.Lock()
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	if p.limit != nil {
		s.left, s.limited = p.limit(), true
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.pump(s, client, server, true) })
	both.Go(func() { p.pump(s, server, client, false) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

func (p *proxy) pump(s *session, from, to net.Conn, up bool) {
	defer s.client.Close()
	defer s.server.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		octets, whole := s.take(buffer[:n])
		if up {
			p.mu.Lock()
			onUp := p.onUp
			p.mu.Unlock()
			if onUp != nil && !onUp(s, octets) {
				return
			}
		}
		if up || !s.isMute() {
			if _, err := to.Write(octets); err != nil {
				return
			}
		}
		if err != nil || !whole {
			return
		}
	}
}

// take says how much of the octets is within the session's limit.
func (s *session) take(octets []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.limited {
		return octets, true
	}
	if int64(len(octets)) > s.left {
		octets = octets[:s.left]
	}
	s.left -= int64(len(octets))
	return octets, s.left > 0
}

func (s *session) isMute() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mute
}

func (s *session) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mute = true
}

// The ways to receive a request that holds mark. What else goes through, like
// the asking of an idle connection whether it lives, is left alone.

// swallow passes it on to the server, whose answer nobody hears.
func swallow(mark string) func(*session, []byte) bool {
	return func(s *session, octets []byte) bool {
		if bytes.Contains(octets, []byte(mark)) {
			s.silence()
		}
		return true
	}
}

// hangUpAfter passes it on to the server and hangs up on both.
func hangUpAfter(mark string) func(*session, []byte) bool {
	return func(s *session, octets []byte) bool {
		if !bytes.Contains(octets, []byte(mark)) {
			return true
		}
		s.silence()
		_, _ = s.server.Write(octets)
		_ = s.server.(*net.TCPConn).CloseWrite()
		// The server closes once it has dealt with what it was sent.
		_, _ = io.Copy(io.Discard, s.server)
		return false
	}
}

// hangUpBefore keeps it from the server.
func hangUpBefore(mark string) func(*session, []byte) bool {
	return func(_ *session, octets []byte) bool { return !bytes.Contains(octets, []byte(mark)) }
}

// babble answers with what is no message of the protocol.
func babble(mark string) func(*session, []byte) bool {
	return func(s *session, octets []byte) bool {
		if !bytes.Contains(octets, []byte(mark)) {
			return true
		}
		s.silence()
		_, _ = s.server.Write(octets)
		_, _ = io.WriteString(s.client, "SSH-2.0-OpenSSH_9.2\r\n\r\n\r\n\r\n")
		return false
	}
}
