package pgproxy

import (
	"io"
	"sync"
)

// Freeze lets nothing through in either direction and ends no connection: a
// network that loses every packet. What is written meanwhile waits.
func (p *Proxy) Freeze() { p.ice.freeze() }

// Thaw lets through what waited.
func (p *Proxy) Thaw() { p.ice.thaw() }

// ice holds up writers while it is there.
type ice struct {
	mu     sync.Mutex
	melted chan struct{} // nil while there is none
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

// icy is a writer that waits for the thaw.
type icy struct {
	ice *ice
	to  io.Writer
}

func (w icy) Write(octets []byte) (int, error) {
	w.ice.wait()
	return w.to.Write(octets)
}
