package pages_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
)

// action is what PagerDuty was asked to do.
func (m message) action() string {
	for _, action := range []string{"trigger", "acknowledge", "resolve"} {
		if strings.Contains(m.body, `"event_action":"`+action+`"`) {
			return action
		}
	}
	return "nothing: " + m.body
}

func (r *receiver) expect(action string) message {
	r.t.Helper()
	m := r.next()
	if got := m.action(); got != action {
		r.t.Fatalf("got %s, want %s", got, action)
	}
	return m
}

func TestEachChannelHearsOfAnIncidentOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var receivers []*receiver
	var channels []pages.Channel
	for name, sender := range map[string]func(string) pages.Sender{
		"pagerduty":    func(url string) pages.Sender { return pages.NewPagerDuty(url, "R0") },
		"slack":        pages.NewSlack,
		"alertmanager": pages.NewAlertmanager,
		"webhook":      func(url string) pages.Sender { return mustWebhook(t, url) },
	} {
		r := newReceiver(t)
		receivers = append(receivers, r)
		channels = append(channels, channel(name, sender(r.server.URL+"/"+canary)))
	}
	d.work(quick(channels...))
	d.incident(pages.CompensationFailed)
	for _, r := range receivers {
		if m := r.next(); !strings.Contains(m.body, "compensation_failed") || strings.Contains(m.body, canary) {
			t.Errorf("got %s", m.body)
		}
	}
	d.looks()
	for _, r := range receivers {
		r.assertSilent()
	}
	for _, channel := range channels {
		d.assertPages(channel.Name, "delivered", 1)
		d.assertPages(channel.Name, "refused", 0)
		d.assertPages(channel.Name, "unreachable", 0)
	}
	d.assertDiscreet()
}

func TestAPagerThatWasDownForTenTriesHearsOnceItIsBack(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	r.answer = func(try int64, w http.ResponseWriter) bool {
		switch {
		case try <= 5:
			cut(w)
		case try <= 10:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
		return try > 10
	}
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL+"/"+canary, canary))))
	d.incident(pages.OutcomeUnknown)

	r.expect("trigger")
	d.looks()
	r.assertSilent()
	fault.Injected(t, 60, int(r.tries.Load())-1)
	if tries := r.tries.Load(); tries != 11 {
		t.Errorf("the pager was called %d times, want 11", tries)
	}
	d.assertPages("pagerduty", "unreachable", 5)
	d.assertPages("pagerduty", "refused", 5)
	d.assertPages("pagerduty", "delivered", 1)
	d.assertDiscreet()
}

func TestADownChannelKeepsNoOtherFromHearing(t *testing.T) {
	t.Parallel()
	d, down, up := newDesk(t), newReceiver(t), newReceiver(t)
	down.answer = func(_ int64, w http.ResponseWriter) bool { cut(w); return false }
	settings := quick(channel("down", pages.NewSlack(down.server.URL)), channel("up", pages.NewSlack(up.server.URL)))
	settings.Retry = func(int) time.Duration { return time.Second }
	d.work(settings)
	const incidents = 40 // more than one look takes on
	for range incidents {
		d.incident(pages.OutcomeUnknown)
	}
	for range incidents {
		up.next()
	}
	if waiting := one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_send' AND finalized_at IS NULL AND args ->> 'channel' = 'down'`); waiting > 20 { // two looks may overlap, and each starts 10
		t.Errorf("%d jobs wait for a channel that is down", waiting)
	}
}

func TestAnOpenIncidentIsRepeatedUntilSomebodyHasIt(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	often := channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))
	often.Repeat = 10 * time.Millisecond
	d.work(quick(often))
	id := d.incident(pages.OutcomeUnknown)
	first, second := r.expect("trigger"), r.expect("trigger")
	if first.body != second.body {
		t.Errorf("the repetition says\n%s\nafter\n%s", second.body, first.body)
	}

	d.acknowledge(id)
	for m := r.next(); m.action() != "acknowledge"; m = r.next() {
		if m.action() != "trigger" {
			t.Fatalf("got %s", m.body)
		}
	}
	d.looks()
	r.assertSilent()
}

func TestWhatWasAcknowledgedWhileThePagerWasDownWakesNobody(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	var up atomic.Bool
	r.answer = func(_ int64, w http.ResponseWriter) bool {
		accepts := up.Load()
		if !accepts {
			cut(w)
		}
		return accepts
	}
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(pages.OutcomeUnknown)
	drainertest.Eventually(t, "the pager is tried", func() bool { return r.tries.Load() > 1 })
	d.acknowledge(id)
	before := r.tries.Load()
	drainertest.Eventually(t, "it is tried again", func() bool { return r.tries.Load() > before+1 })
	up.Store(true)
	r.expect("acknowledge") // an answer may have been lost, so it could know of it
	d.looks()
	r.assertSilent()
}

func TestAResolutionReachesThePagerAndAReopenedIncidentPagesAgain(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(pages.OutcomeUnknown)
	first := r.expect("trigger")

	d.exec(`UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'operator:on-call' WHERE id = $1`, id)
	over := r.expect("resolve")
	if dedupKey(first) != dedupKey(over) {
		t.Errorf("%s is resolved instead of %s", dedupKey(over), dedupKey(first))
	}

	d.exec(`UPDATE outbox.incident SET opened_at = now() WHERE id = $1`, id)
	again := r.expect("trigger")
	if dedupKey(again) == dedupKey(first) {
		t.Errorf("the pager takes %s for old news", dedupKey(again))
	}
	d.looks()
	r.assertSilent()
}

// Resolved and opened again between two looks, the first opening still ends.
func TestWhatWasOpenedAgainMeanwhileEndsUnderItsOldKey(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(pages.OutcomeUnknown)
	first := r.expect("trigger")
	d.looks()

	tx, err := d.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{"resolved_at = now()", "opened_at = now()"} {
		if _, err := tx.Exec(t.Context(), `UPDATE outbox.incident SET `+change+` WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for range 2 {
		m := r.next()
		got[m.action()] = dedupKey(m)
	}
	if got["resolve"] != dedupKey(first) || got["trigger"] == dedupKey(first) || got["trigger"] == "" {
		t.Errorf("got %v after %s", got, dedupKey(first))
	}
}

func dedupKey(m message) string {
	_, rest, _ := strings.Cut(m.body, `"dedup_key":"`)
	key, _, _ := strings.Cut(rest, `"`)
	return key
}

func (d *desk) acknowledge(id int64) {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(d.t.Context()))
	done, err := console.Acknowledge(d.t.Context(), operator.Signature{Operator: "on-call", Reason: "mine"}, []int64{id})
	if err != nil || done[0].Refused != "" {
		d.t.Fatalf("acknowledge: %+v, %v", done, err)
	}
}

func TestThreeRunnersPageOnce(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const incidents = 20
	for range incidents {
		d.incident(pages.OutcomeUnknown)
	}
	for range 3 {
		d.run(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	}
	seen := map[string]bool{}
	for range incidents {
		seen[dedupKey(r.expect("trigger"))] = true
	}
	if len(seen) != incidents {
		t.Errorf("%d of %d incidents were paged", len(seen), incidents)
	}
	d.looks()
	r.assertSilent()
}

// run is a process of its own, with the runner that daemons have.
func (d *desk) run(settings pages.Settings) {
	d.t.Helper()
	pool, err := jobs.OpenPool(d.t.Context(), d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	runner, err := jobs.New(pool, log, pages.New(pool, settings, log, prometheus.NewRegistry()))
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(d.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	d.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
		pool.Close()
	})
}

func TestPagesThatAChannelRefusesKeepNoOtherOut(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const refused = 12 // more than are under way at once
	for range refused {
		d.incident(pages.OutcomeUnknown)
	}
	good := d.incident(pages.CompensationFailed)
	r.answer = func(_ int64, w http.ResponseWriter) bool {
		w.WriteHeader(http.StatusBadRequest)
		return true
	}
	d.work(quick(channel("slack", pages.NewSlack(r.server.URL))))
	want := fmt.Sprintf("incident %d", good)
	for m := r.next(); !strings.Contains(m.body, want); m = r.next() {
		continue
	}
}

// A job of a process that was killed counts as running for minutes.
func TestPagesOfAProcessThatDiedKeepNoOtherOut(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const left = 12 // more than are under way at once
	for range left {
		d.exec(`INSERT INTO outbox.river_job (kind, queue, state, args, attempt, max_attempts, attempted_at, attempted_by)
			VALUES ('page_send', 'pages', 'running', jsonb_build_object('channel', 'slack', 'incident_id', $1::bigint, 'generation', 1),
			        1, 3, now() - interval '40 seconds', '{gone}')`, d.incident(pages.OutcomeUnknown))
	}
	fresh := d.incident(pages.CompensationFailed)
	d.work(quick(channel("slack", pages.NewSlack(r.server.URL))))
	if m := r.next(); !strings.Contains(m.body, fmt.Sprintf("incident %d", fresh)) {
		t.Errorf("told is %s, want incident %d", m.body, fresh)
	}
}

func TestALookThatFailsIsSaidAndMadeAgain(t *testing.T) {
	t.Parallel()
	for fails, test := range map[string]struct{ breaks, mends string }{
		"look for due pages": {`ALTER TABLE outbox.page RENAME TO away`, `ALTER TABLE outbox.away RENAME TO page`},
		"insert page jobs": {
			`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room'; END $$;
			 CREATE TRIGGER fail BEFORE INSERT ON outbox.river_job FOR EACH ROW WHEN (NEW.kind = 'page_send') EXECUTE FUNCTION fail()`,
			`DROP TRIGGER fail ON outbox.river_job`,
		},
	} {
		t.Run(fails, func(t *testing.T) {
			t.Parallel()
			d, r := newDesk(t), newReceiver(t)
			d.exec(test.breaks)
			d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
			d.incident(pages.OutcomeUnknown)
			drainertest.Eventually(t, "it says what fails", func() bool {
				said := d.log.String()
				return strings.Contains(said, "cannot look after incidents; the next look will try again") && strings.Contains(said, fails)
			})
			d.exec(test.mends)
			r.expect("trigger")
		})
	}
}
