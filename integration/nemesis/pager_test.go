package nemesis_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// pager receives pages, unless it is down.
type pager struct {
	url    string
	watch  *watch
	down   atomic.Bool
	verify *standardwebhooks.Webhook

	mu       sync.Mutex
	received map[group]bool
}

// group counts the open incidents of one kind at one provider. Each page is about one group.
type group struct {
	Kind     string `json:"kind"`
	Provider string `json:"provider"`
	Count    int    `json:"count"`
}

func newPager(t testing.TB, watch *watch) *pager {
	t.Helper()
	verify, err := standardwebhooks.NewWebhook(pagerSecret)
	if err != nil {
		t.Fatal(err)
	}
	p := &pager{watch: watch, verify: verify, received: map[group]bool{}}
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
		Data group
	}
	if p.verify.Verify(body, r.Header) != nil || json.Unmarshal(body, &event) != nil {
		http.Error(w, "not signed, or no event", http.StatusBadRequest)
		return
	}
	if event.Type == "incident.opened" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.received[event.Data] = true
	}
}

// missing returns the groups for which no page has come.
func (p *pager) missing(groups []group) (missing []group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, group := range groups {
		if !p.received[group] {
			missing = append(missing, group)
		}
	}
	return missing
}

// silence is how long the pager may wait for the next missing page. It is longer than the interval at which stuck
// jobs are looked for.
const silence = 45 * time.Second

// assertPaged waits until a page has come for each group of open incidents.
func (a *arena) assertPaged() {
	a.t.Helper()
	open, err := a.open()
	if err != nil {
		a.t.Fatal(err)
	}
	begun := time.Now()
	missing := a.pager.await(open)
	a.t.Logf("%d groups of incidents are open, and paged after %s", len(open)-len(missing), time.Since(begun).Round(100*time.Millisecond))
	if len(missing) > 0 {
		a.t.Errorf("no page came for %d of %d groups of open incidents: %v", len(missing), len(open), missing[:min(len(missing), 5)])
	}
	if len(open) == 0 {
		a.t.Error("no incident is open: pages were not put to the test")
	}
}

// open returns the groups of open incidents that are not acknowledged. It first ends two waits: a page whose sender
// was killed counts as being sent for 20 s, and a page about a group that grew comes after five minutes. A key
// collision is a warning, and a channel without a match gets no warnings.
func (a *arena) open() ([]group, error) {
	_, err := a.DB.Exec(context.Background(), `UPDATE outbox.page SET left_until = NULL, told_at = told_at - interval '6 minutes'`)
	if err != nil {
		return nil, err
	}
	rows, err := a.DB.Query(context.Background(), `SELECT i.kind, t.provider, count(*)::int
		FROM outbox.incident i JOIN outbox.intent t ON t.id = i.intent_id
		WHERE i.acknowledged_at IS NULL AND i.resolved_at IS NULL AND i.kind <> 'key_collision' GROUP BY 1, 2`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[group])
}

// await returns the groups that are still missing, once none is missing or none has come for too long.
func (p *pager) await(groups []group) []group {
	left, last := p.missing(groups), time.Now()
	for len(left) > 0 && time.Since(last) < silence {
		time.Sleep(100 * time.Millisecond)
		if now := p.missing(groups); len(now) < len(left) {
			left, last = now, time.Now()
		}
	}
	return left
}
