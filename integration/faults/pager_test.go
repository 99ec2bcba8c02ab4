package faults_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// page is what a pager is told of an incident.
type page struct {
	Type string
	Data struct {
		IntentID int64 `json:"intent_id"`
		Kind     string
	}
}

// pager is a webhook's receiver. It begins by being down.
type pager struct {
	up      atomic.Bool
	refused atomic.Int64
	heard   chan page
}

// newPager makes a world's daemons page there.
func newPager(t *testing.T, w *world.World) *pager {
	t.Helper()
	p := &pager{heard: make(chan page, 100)}
	url := dispatchtest.Serve(t, p)
	w.Reconfigure(func(config string) string {
		return config + fmt.Sprintf("pages:\n  - {webhook: {url: %q, secret: %q}}\n", url, "whsec_"+strings.Repeat("A", 32))
	})
	return p
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.up.Load() {
		p.refused.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var told page
	_ = json.Unmarshal(body, &told)
	p.heard <- told
}

func (p *pager) await(t *testing.T, what string, matches func(page) bool) {
	t.Helper()
	timeout := time.After(drainertest.Patience)
	for {
		select {
		case told := <-p.heard:
			if matches(told) {
				return
			}
		case <-timeout:
			t.Fatalf("the pager was never told of %s", what)
		}
	}
}

// withoutProof makes orders that cannot be repeated, nor asked for.
func withoutProof(config string) string {
	before, order, _ := strings.Cut(config, "path: /v1/orders")
	order = strings.Replace(order, "{class: key_idempotent, ttl: 24h, scope: account}", "{class: non_idempotent}", 1)
	return before + "path: /v1/orders" + strings.Replace(order, "        lookup: {tool: find, margin: 500ms}\n", "", 1)
}

// A worker is stopped when it alone knows that a step had its effect. A human
// says that there was none, and the run goes back without it.
func TestAnEffectThatComesAfterTheRunWentBackIsPagedOncePagersAreUp(t *testing.T) {
	t.Parallel()
	w := world.New(t, nil)
	w.Reconfigure(patient)
	w.Reconfigure(withoutProof)
	pager := newPager(t, w)
	zombie := w.Start("DRAINER_FAILPOINTS=after_reply=stop")
	w.Step("run-1", 1, world.Order)
	zombie.WaitFor("failpoint after_reply stop")
	w.Start()
	w.Step("run-1", 2, world.Declined)
	w.AwaitCount("nobody can tell of the order", 1, `SELECT count(*) FROM outbox.incident WHERE kind = 'outcome_unknown'`)
	w.Program.Run(0, "intents", "resolve", "1", "--as", "failed", "--operator", "ann", "--reason", "it is in no list")
	w.AwaitCount("the run has gone back", 1, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)

	zombie.Signal(syscall.SIGCONT)
	w.AwaitCount("the effect is known", 1, `SELECT count(*) FROM outbox.incident WHERE detail = 'late_effect'`)
	refused := pager.refused.Load()
	drainertest.Eventually(t, "the pager is tried in vain, twice", func() bool { return pager.refused.Load() > refused+1 })
	pager.up.Store(true)
	pager.await(t, "the late effect", func(told page) bool {
		return told.Type == "incident.opened" && told.Data.Kind == "compensation_failed" && told.Data.IntentID == 1
	})

	fault.Injected(t, 57, w.Count(`SELECT count(*) FROM outbox.attempt WHERE error = 'late'`))
	fault.Injected(t, 60, int(pager.refused.Load()))
	if state := w.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensation_failed'`); state != 1 {
		t.Error("the run is still said to have gone back")
	}
	w.AwaitRest()
	w.Check()
}
