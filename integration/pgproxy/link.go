package pgproxy

import (
	"io"
	"net"
	"sync/atomic"
)

// link is one connection, of two halves. A silent one carries nothing any more,
// and neither end hears of the other's end.
type link struct {
	client, server net.Conn
	silent         atomic.Bool
}

// Silence makes the connections that there are half-open: they stand, and
// whatever is said on them is lost. It reports how many there are. New ones are
// as good as ever.
func (p *Proxy) Silence() (links int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.silent.Store(true)
	}
	return len(p.links)
}

// hangUp tells the server that the client has gone.
func (l *link) hangUp() {
	if !l.silent.Load() {
		_ = l.server.Close()
	}
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// to is one end of the link, as far as the link still reaches it.
func (l *link) to(end io.Writer) io.Writer { return reachable{l, end} }

type reachable struct {
	link *link
	end  io.Writer
}

func (r reachable) Write(octets []byte) (int, error) {
	if r.link.silent.Load() {
		return len(octets), nil
	}
	return r.end.Write(octets)
}
