package faults_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/world"
)

// garbler stands before a world's provider: the first reply under each key is
// lost, and the client gets something else in its place. The effect is there.
type garbler struct {
	provider http.Handler
	garble   http.HandlerFunc

	mu   sync.Mutex
	keys map[string]bool // that have met it
}

// newGarbler makes a world's daemons go there. No breaker opens.
func newGarbler(t *testing.T, w *world.World, garble http.HandlerFunc) *garbler {
	t.Helper()
	g := &garbler{provider: w.Provider, garble: garble, keys: map[string]bool{}}
	url := dispatchtest.Serve(t, g)
	w.Reconfigure(func(config string) string {
		config = strings.ReplaceAll(config, w.BaseURL, url)
		return strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {consecutive_failures: 10000}\n")
	})
	return g
}

func (g *garbler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !g.isFirst(r.Header.Get("Idempotency-Key")) {
		g.provider.ServeHTTP(w, r)
		return
	}
	g.provider.ServeHTTP(httptest.NewRecorder(), r)
	g.garble(w, r)
}

func (g *garbler) isFirst(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	met := g.keys[key]
	g.keys[key] = true
	return key != "" && !met
}

func (g *garbler) met() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.keys)
}
