package dispatchtest

import (
	"net/http"
	"time"
)

// honours reports whether the key protects from a second effect.
func (p *SimulatedProvider) honours(entry Entry) bool {
	return entry.Key != "" && !p.IgnoreKeys && entry.Method != http.MethodGet
}

// remembers is what the key brings again, until its time is over.
func (p *SimulatedProvider) remembers(key string) (Entry, bool) {
	kept, found := p.Ledger.keptUnder(key)
	forgotten := p.KeyTTL > 0 && p.now().Sub(kept.At) >= p.KeyTTL
	return kept, found && !forgotten
}

func (p *SimulatedProvider) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

func (p *SimulatedProvider) begin(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[key] {
		return false
	}
	if p.busy == nil {
		p.busy = map[string]bool{}
	}
	p.busy[key] = true
	return true
}

func (p *SimulatedProvider) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, key)
}
