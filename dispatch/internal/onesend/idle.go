package onesend

import (
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch/internal/peek"
)

// idleConnections are open and wait for their next exchange. The one that
// served last serves next, so that the others can grow old.
type idleConnections struct {
	mu     sync.Mutex
	open   []*connection // in the order in which they came back
	closed bool
	sweep  *time.Timer // runs while any is open
}

// take finds a connection to the address on which the provider has been silent,
// but not for too long: while a machine sleeps nothing is swept, and nobody hears
// that the peer is gone.
func (i *idleConnections) take(address string) *connection {
	for {
		conn := i.pop(address)
		if conn == nil || (conn.age() < idleTimeout && peek.At(conn.Conn) == peek.Quiet) {
			return conn
		}
		conn.abandon()
	}
}

func (i *idleConnections) pop(address string) *connection {
	i.mu.Lock()
	defer i.mu.Unlock()
	for at := len(i.open) - 1; at >= 0; at-- {
		if conn := i.open[at]; conn.address == address {
			i.open = append(i.open[:at], i.open[at+1:]...)
			return conn
		}
	}
	return nil
}

// put closes the connection where there is no room for it, or no telling later
// whether it is still good.
func (i *idleConnections) put(conn *connection) {
	conn.idleAt = time.Now()
	if !peek.Possible(conn.Conn) || !i.push(conn) {
		conn.abandon()
	}
}

func (i *idleConnections) push(conn *connection) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed || len(i.open) >= maxIdleConnections {
		return false
	}
	i.open = append(i.open, conn)
	if i.sweep == nil {
		i.sweep = time.AfterFunc(idleTimeout, i.closeOld)
	}
	return true
}

// closeOld comes again as long as there is anything to close.
func (i *idleConnections) closeOld() {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := 0
	for ; old < len(i.open) && i.open[old].age() >= idleTimeout; old++ {
		i.open[old].abandon()
	}
	i.open = append(i.open[:0], i.open[old:]...)
	if len(i.open) == 0 {
		i.sweep = nil
		return
	}
	i.sweep.Reset(idleTimeout - i.open[0].age())
}

func (i *idleConnections) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	for _, conn := range i.open {
		conn.abandon()
	}
	i.open = nil
	if i.sweep != nil {
		i.sweep.Stop()
	}
}
