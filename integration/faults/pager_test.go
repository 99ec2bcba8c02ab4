package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/cluster"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/program"
)

// page is an event about an incident, as a pager receives it.
type page struct {
	Type string
	Data struct {
		IntentID int64 `json:"intent_id"`
		Kind     string
	}
}

// pager is the receiver of a webhook. It is down at first.
type pager struct {
	up       atomic.Bool
	hangs    atomic.Bool // while it is down it does not answer before the client has gone
	refused  atomic.Int64
	received chan page
}

// newPager makes the rig's daemons page to a new pager.
func newPager(t *testing.T, rig *harness.Rig) *pager {
	t.Helper()
	p := &pager{received: make(chan page, 100)}
	url := dispatchtest.Serve(t, p)
	rig.Reconfigure(func(config string) string {
		return config + fmt.Sprintf("pages:\n  - {webhook: {url: %q, secret: %q}}\n", url, "whsec_"+strings.Repeat("A", 32))
	})
	return p
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.up.Load() {
		if p.hangs.Load() {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client is gone
		}
		p.refused.Add(1)
		if p.hangs.Load() {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body, _ := io.ReadAll(r.Body)
	var received page
	_ = json.Unmarshal(body, &received)
	p.received <- received
}

func (p *pager) await(t *testing.T, what string, matches func(page) bool) {
	t.Helper()
	timeout := time.After(drainertest.Patience)
	for {
		select {
		case received := <-p.received:
			if matches(received) {
				return
			}
		case <-timeout:
			t.Fatalf("the pager never received %s", what)
		}
	}
}

// withoutProof configures orders that can be neither repeated nor looked up.
func withoutProof(config string) string {
	before, order, _ := strings.Cut(config, "path: /v1/orders")
	order = strings.Replace(order, "{class: key_idempotent, ttl: 24h, scope: account}", "{class: non_idempotent}", 1)
	return before + "path: /v1/orders" + strings.Replace(order, "        lookup: {tool: find, margin: 500ms}\n", "", 1)
}

// A worker is stopped when only it knows that a step had its effect. An operator resolves the step as failed, and the
// run is rolled back without an undo of this step.
func TestAnEffectThatComesAfterTheRunWentBackIsPagedOncePagersAreUp(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(patient)
	rig.Reconfigure(withoutProof)
	pager := newPager(t, rig)
	late := rig.Start("DRAINER_FAILPOINTS=after_reply=stop")
	rig.Step("run-1", 1, harness.Order)
	late.WaitFor("failpoint after_reply stop")
	rig.Start()
	rig.Step("run-1", 2, harness.Declined)
	rig.AwaitCount("the order is unknown", 1, `SELECT count(*) FROM outbox.incident WHERE kind = 'outcome_unknown'`)
	rig.Program.Run(0, "intents", "resolve", "1", "--as", "failed", "--operator", "ann", "--reason", "it is in no list")
	rig.AwaitCount("the run is rolled back", 1, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)

	late.Signal(syscall.SIGCONT)
	rig.AwaitCount("the effect is known", 1, `SELECT count(*) FROM outbox.incident WHERE detail = 'late_effect'`)
	refused := pager.refused.Load()
	drainertest.Eventually(t, "the pager is tried in vain, twice", func() bool { return pager.refused.Load() > refused+1 })
	pager.up.Store(true)
	pager.await(t, "the late effect", func(received page) bool {
		return received.Type == "incident.opened" && received.Data.Kind == "compensation_failed" && received.Data.IntentID == 1
	})

	fault.Injected(t, 57, rig.Count(`SELECT count(*) FROM outbox.attempt WHERE error = 'late'`))
	fault.Injected(t, 60, int(pager.refused.Load()))
	if state := rig.Count(`SELECT count(*) FROM outbox.saga WHERE state = 'compensation_failed'`); state != 1 {
		t.Error("the run is still shown as rolled back")
	}
	rig.AwaitRest()
	rig.Check()
}

func isUnknown(received page) bool {
	return received.Type == "incident.opened" && received.Data.Kind == "outcome_unknown"
}

// A process whose clock is an hour ahead of the database fails to deliver a page.
func TestAPageThatAProcessAheadOfTheDatabaseTriedComesWithinSeconds(t *testing.T) {
	t.Parallel()
	clock := cluster.NewClock(t)
	server := cluster.Start(t, clock.Of())
	clock.SetOff(-time.Hour)
	rig := harness.At(t, server.URL, dispatchtest.Script(dispatchtest.ErrorAfter))
	pager := newPager(t, rig)
	ahead := rig.Start()
	rig.Enqueue(harness.Once, 1)
	drainertest.Eventually(t, "the pager is tried in vain", func() bool { return pager.refused.Load() > 0 })
	pager.up.Store(true)
	pager.await(t, "an outcome that is unknown", isUnknown)
	fault.Injected(t, 78, int(pager.refused.Load()))
	ahead.Terminate()
	rig.AwaitRest()
	rig.Check()
}

// River counts the job of the killed process as running for a minute and a half.
func TestAPageThatAKilledProcessWasSendingIsSentByAnother(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, dispatchtest.Script(dispatchtest.ErrorAfter))
	pager := newPager(t, rig)
	pager.hangs.Store(true)
	victim := rig.Start()
	rig.Enqueue(harness.Once, 1)
	drainertest.Eventually(t, "the pager has a request", func() bool { return pager.refused.Load() > 0 })
	victim.Kill()
	killed := time.Now()
	pager.up.Store(true)
	rig.Start()
	pager.await(t, "an outcome that is unknown", isUnknown)
	t.Logf("paged %s after the kill", time.Since(killed).Round(time.Second))
	fault.Injected(t, 78, 1)
	rig.AwaitRest()
	rig.Check()
}

// strangerOf connects with a login that may CONNECT to the rig's database, and has no other right.
func strangerOf(t *testing.T, rig *harness.Rig) *pgx.Conn {
	t.Helper()
	stranger, err := pgx.Connect(t.Context(), drainertest.Login(t, rig.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close(context.Background()) })
	return stranger
}

// notifications returns messages that a stranger may send to River, which has a channel for each schema, and to
// the daemon.
func notifications() (all []struct{ channel, payload string }) {
	for _, channel := range []string{"outbox.river_control", "river_control", "outbox.river_insert", "outbox.river_leadership", "outbox"} {
		for _, payload := range []string{
			`{"action": "pause", "queue": "*"}`,
			`{"action": "pause", "queue": "default"}`,
			`{"action": "pause", "queue": "pages"}`,
			`{"action": "pause", "queue": "sagas"}`,
			`{"action": "cancel", "queue": "pages", "job_id": 1}`,
			`{"action": "request_resign"}`,
			`{"action": "resigned", "leader_id": "nobody"}`,
			`{"queue": "pages"}`,
			`junk`,
			strings.Repeat("x", 7999),
			"",
		} {
			all = append(all, struct{ channel, payload string }{channel, payload})
		}
	}
	return all
}

func TestAStrangerWhoNotifiesStopsNoPageAndNoCompensation(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, dispatchtest.Script(dispatchtest.ErrorAfter))
	pager := newPager(t, rig)
	pager.up.Store(true)
	rig.Reconfigure(withPatientLease) // so that it logs no lost lease
	daemon := rig.Start()
	rig.AwaitCount("River works", 1, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed'`)

	stranger, sent := strangerOf(t, rig), 0
	for _, n := range notifications() {
		drainertest.Exec(t, stranger, `SELECT pg_notify($1, $2)`, n.channel, n.payload)
		sent++
	}
	for _, table := range []string{"river_queue", "river_job", "river_leader"} {
		if _, err := stranger.Exec(t.Context(), `DELETE FROM outbox.`+table); err == nil {
			t.Errorf("the stranger may delete from outbox.%s", table)
		}
	}
	fault.Injected(t, 66, sent)

	rig.Enqueue(harness.Once, 1)
	pager.await(t, "an outcome that is unknown", func(received page) bool { return received.Data.Kind == "outcome_unknown" })
	rig.Step("run-back", 1, harness.Order)
	rig.AwaitCount("the first step is done", 1, `SELECT count(*) FROM outbox.status WHERE agent_run_id = 'run-back' AND status = 'completed'`)
	rig.Step("run-back", 2, harness.Declined)
	rig.AwaitCount("the run is taken back", 1, `SELECT count(*) FROM outbox.saga WHERE agent_run_id = 'run-back' AND state = 'compensated'`)
	rig.AwaitRest()
	rig.Check()
	log := daemon.Terminate()
	if lines := strings.Count(log, "\n"); lines > 40 {
		t.Errorf("the daemon logs %d lines, of which the stranger's messages may cost none:\n%s", lines, log)
	}
}

// A lane that gets notifications, but finds no work, polls less and less often.
func TestAStrangersNotificationsCostALaneFewLooks(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	rig.Reconfigure(steady)
	daemon := rig.Start()
	stranger := strangerOf(t, rig)
	began := time.Now()
	before, sent := turns(t, daemon), 0
	for ; time.Since(began) < 2*time.Second; sent += 6 {
		drainertest.Exec(t, stranger, `SELECT pg_notify('outbox', provider) FROM unnest('{keyed,set,once,asked,shop,refunds}'::text[]) provider`)
	}
	const lanes = 6
	looks, seconds := turns(t, daemon)-before, time.Since(began).Seconds()
	fault.Injected(t, 66, sent)
	t.Logf("%d notifications in %.1f s: %.0f commits", sent, seconds, looks)
	if bound := lanes * (seconds*110 + 40); looks > bound { // one poll in 10 ms, and the first polls of each lane
		t.Errorf("%d notifications in %.1f s cost %.0f commits, want %.0f at most", sent, seconds, looks, bound)
	}
	rig.Enqueue(harness.Keyed, 5)
	rig.AwaitRest()
	rig.Check()
}

// turns returns how many batches a daemon has committed for its lanes.
func turns(t *testing.T, daemon *program.Daemon) float64 {
	t.Helper()
	const series = "drainer_batch_duration_seconds_count "
	for line := range strings.Lines(daemon.Get("/metrics")) {
		if value, found := strings.CutPrefix(line, series); found {
			count, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatal(fmt.Errorf("there is no series %s", series))
	return 0
}
