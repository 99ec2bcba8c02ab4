package nemesis_test

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// pager hears of incidents, unless it is down.
type pager struct {
	url    string
	watch  *watch
	down   atomic.Bool
	verify *standardwebhooks.Webhook

	mu    sync.Mutex
	heard map[opening]bool
}

// opening is one of an incident.
type opening struct {
	Incident   int64 `json:"incident_id"`
	Generation int   `json:"generation"`
}

func newPager(t testing.TB, watch *watch) *pager {
	t.Helper()
	verify, err := standardwebhooks.NewWebhook(pagerSecret)
	if err != nil {
		t.Fatal(err)
	}
	p := &pager{watch: watch, verify: verify, heard: map[opening]bool{}}
	p.url = dispatchtest.Serve(t, p) + "/" + canary
	return p
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || p.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	p.watch.read("a page", string(body))
	var event struct {
		Type string
		Data opening
	}
	if p.verify.Verify(body, r.Header) != nil || json.Unmarshal(body, &event) != nil {
		http.Error(w, "not signed, or no event", http.StatusBadRequest)
		return
	}
	if event.Type == "incident.opened" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.heard[event.Data] = true
	}
}

// unheard are those of the openings that it knows nothing of.
func (p *pager) unheard(openings []opening) (unheard []opening) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, opening := range openings {
		if !p.heard[opening] {
			unheard = append(unheard, opening)
		}
	}
	return unheard
}
