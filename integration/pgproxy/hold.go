package pgproxy

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"sync"
)

// Hold keeps back commits: the server has done all that comes before, and keeps
// its locks, but was not told to commit.
type Hold struct {
	Caught chan struct{} // closed once a commit is kept back

	text     string
	released chan struct{}
	catch    func()
	release  func()
}

// HoldCommits keeps back, from now on, the commit of every transaction in which
// a statement with that text runs. A client that goes away meanwhile has not
// committed.
func (p *Proxy) HoldCommits(text string) *Hold {
	h := &Hold{Caught: make(chan struct{}), text: text, released: make(chan struct{})}
	h.catch = sync.OnceFunc(func() { close(h.Caught) })
	h.release = sync.OnceFunc(func() { close(h.released) })
	p.hold.Store(h)
	return h
}

// Release lets the commits pass, and every later one.
func (h *Hold) Release() { h.release() }

func (h *Hold) concerns(statements []string) bool {
	return h != nil && slices.ContainsFunc(statements, func(sql string) bool { return strings.Contains(sql, h.text) })
}

// keep waits for the release. It reports false for a client that went away.
func (h *Hold) keep(more <-chan message) bool {
	h.catch()
	select {
	case <-h.released:
		return true
	case <-more: // who waits for a commit says nothing, except farewell
		return false
	}
}

type message struct {
	kind   byte
	octets []byte // kind and length included
}

// forward passes on what a client says.
func (p *Proxy) forward(server io.Writer, client io.Reader) {
	from := bufio.NewReader(client)
	if err := passGreeting(server, from); err != nil {
		return
	}
	said := make(chan message)
	go func() {
		defer close(said)
		for {
			kind, octets, err := readMessage(from)
			if err != nil {
				return
			}
			said <- message{kind, octets}
		}
	}()
	defer func() {
		for range said { // lets the reader go
		}
	}()
	var spoken dialogue
	for next := range said {
		statements := spoken.committedBy(next)
		if h := p.hold.Load(); h.concerns(statements) && !h.keep(said) {
			return
		}
		if _, err := server.Write(next.octets); err != nil {
			return
		}
	}
}
