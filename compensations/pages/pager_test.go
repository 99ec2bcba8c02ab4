package pages_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// action returns the event action of a message to PagerDuty.
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
		linked := channel(name, sender(r.server.URL+"/"+canary))
		linked.Console = "https://outbox.example"
		channels = append(channels, linked)
	}
	d.work(quick(channels...))
	d.incident(incident.CompensationFailed)
	for _, r := range receivers {
		if m := r.next(); !strings.Contains(m.body, "compensation_failed") || !strings.Contains(m.body, "https://outbox.example/incidents?id=") || strings.Contains(m.body, canary) {
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
	d.incident(incident.OutcomeUnknown)

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

// Each channel that hangs could occupy a worker for as long as it hangs.
func TestChannelsThatHangKeepNoOtherFromHearing(t *testing.T) {
	t.Parallel()
	d, up := newDesk(t), newReceiver(t)
	hanging := newReceiver(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	hanging.answer = func(int64, http.ResponseWriter) bool { <-over; return false }
	var channels []pages.Channel
	for n := range jobs.MaxChannels - 1 {
		channels = append(channels, channel(fmt.Sprintf("hangs-%d", n), pages.NewSlack(hanging.server.URL)))
	}
	d.run(quick(append(channels, channel("up", pages.NewSlack(up.server.URL)))...))
	d.incident(incident.OutcomeUnknown)
	up.next()
	drainertest.Eventually(t, "every other channel hangs", func() bool { return hanging.tries.Load() == int64(len(channels)) })
	const later = 20
	for n := range later {
		d.incidentAt(incident.OutcomeUnknown, fmt.Sprintf("sim%d", n))
	}
	for range later {
		up.next()
	}
}

func TestADownChannelHasFewJobs(t *testing.T) {
	t.Parallel()
	d, down := newDesk(t), newReceiver(t)
	down.answer = func(_ int64, w http.ResponseWriter) bool { cut(w); return false }
	for n := range 40 {
		d.incidentAt(incident.OutcomeUnknown, fmt.Sprintf("sim%d", n))
	}
	d.work(quick(channel("down", pages.NewSlack(down.server.URL))))
	drainertest.Eventually(t, "it is tried", func() bool { return down.tries.Load() > 40 })
	// A job that ran stays in the table as running until River writes its end in a batch, so only jobs that no worker has
	// taken are counted. Looks that overlap may each add one. A job for each page would be 40.
	if waiting := one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_send' AND finalized_at IS NULL AND state <> 'running'`); waiting > 4 {
		t.Errorf("%d jobs wait for a channel that is down", waiting)
	}
}

// After 45 minutes of faults the pages of 3,665 incidents once took a quarter of an hour.
func TestTenThousandIncidentsTellOfEachKindAndProviderOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const providers, each = 20, 10_000
	kinds := []incident.Kind{ // a look does not resolve these, although it finds no cause
		incident.OutcomeUnknown, incident.CompensationFailed, incident.ReversalWindowExpired, incident.SagaStalled, incident.RefusedIntent, incident.FirstReplay,
	}
	d.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
		SELECT ($1::text[])[1 + n % cardinality($1::text[])], e.intent_id, 'run'
		FROM generate_series(0, $2::int - 1) n, outbox.enqueue('run', n::text, 'sim' || n / cardinality($1::text[]) % $3::int || '/act', 'scope', '{}') e`,
		kinds, each, providers)
	d.run(quick(channel("webhook", mustWebhook(t, r.server.URL))))

	groups := providers * len(kinds)
	told, incidents := map[string]bool{}, 0
	for range groups {
		var event struct {
			Data struct {
				Count          int
				Kind, Provider string
			}
		}
		if err := json.Unmarshal([]byte(r.next().body), &event); err != nil {
			t.Fatal(err)
		}
		told[event.Data.Kind+" "+event.Data.Provider] = true
		incidents += event.Data.Count
	}
	if len(told) != groups || incidents != each {
		t.Errorf("told is of %d incidents of %d kinds and providers, want %d of %d", incidents, len(told), each, groups)
	}
	d.looks()
	r.assertSilent()
	if requests := r.tries.Load(); requests != int64(groups) {
		t.Errorf("%d incidents cost %d requests, want %d", each, requests, groups)
	}
	if rows := one[int](d, `SELECT count(*)::int FROM outbox.page`); rows != groups {
		t.Errorf("%d rows keep what was told, want %d", rows, groups)
	}
	read := one[int](d, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'outbox.incident'::regclass`)
	sends, looks := one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_send'`), one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_look'`)
	t.Logf("%d looks and %d jobs that send read %d incidents", looks, sends, read)
	if sends > groups || read > each*(looks+sends) { // each job reads every incident once at most
		t.Errorf("%d looks and %d jobs that send read %d incidents, of which there are %d", looks, sends, read, each)
	}
}

func TestAnOpenIncidentIsRepeatedUntilSomebodyHasIt(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	often := channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))
	often.Repeat = 10 * time.Millisecond
	d.work(quick(often))
	id := d.incident(incident.OutcomeUnknown)
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
	id := d.incident(incident.OutcomeUnknown)
	drainertest.Eventually(t, "the pager is tried", func() bool { return r.tries.Load() > 1 })
	d.acknowledge(id)
	before := r.tries.Load()
	drainertest.Eventually(t, "it is tried again", func() bool { return r.tries.Load() > before+1 })
	up.Store(true)
	r.expect("acknowledge") // an answer may have been lost, so the pager could know the incident
	d.looks()
	r.assertSilent()
}

func TestAResolutionReachesThePagerAndAReopenedIncidentPagesAgain(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(incident.OutcomeUnknown)
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

func TestAnIntentsNewKeyDoesNotKeepItsPageFromEnding(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(incident.OutcomeUnknown)
	first := r.expect("trigger")

	// as `intents retry --new-key` does
	d.exec(`WITH another AS (INSERT INTO outbox.generation (intent_id, generation, doubt) SELECT intent_id, 2, false FROM outbox.incident WHERE id = $1)
		UPDATE outbox.incident SET resolved_at = now(), resolved_by = 'operator:on-call' WHERE id = $1`, id)
	if over := r.expect("resolve"); dedupKey(over) != dedupKey(first) {
		t.Errorf("%s is resolved instead of %s", dedupKey(over), dedupKey(first))
	}
}

func TestOutboxesThatShareAPagerPageUnderDifferentKeys(t *testing.T) {
	t.Parallel()
	r, keys := newReceiver(t), map[string]bool{}
	for range 2 {
		d := newDesk(t)
		d.exec(`UPDATE outbox.fingerprint_key SET key = sha256(uuid_send(gen_random_uuid()))`) // the databases of tests are copies of one template
		d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
		d.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('history_changed', 0, '')`)
		keys[dedupKey(r.expect("trigger"))] = true
	}
	if len(keys) != 2 {
		t.Errorf("the two outboxes page under %v", keys)
	}
}

// An incident is resolved and opened again between two looks. The page of its first opening still ends.
func TestWhatWasOpenedAgainMeanwhileEndsUnderItsOldKey(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	d.work(quick(channel("pagerduty", pages.NewPagerDuty(r.server.URL, "R0"))))
	id := d.incident(incident.OutcomeUnknown)
	first := r.expect("trigger")
	d.looks()

	tx := drainertest.Begin(t, d.db)
	for _, change := range []string{"resolved_at = now()", "opened_at = now()"} {
		drainertest.Exec(t, tx, `UPDATE outbox.incident SET `+change+` WHERE id = $1`, id)
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
	done, err := console.Acknowledge(d.t.Context(), operator.Signature{Operator: "on-call", Reason: "mine"}, []int64{id}, time.Time{})
	if err != nil || done[0].Refused != "" {
		d.t.Fatalf("acknowledge: %+v, %v", done, err)
	}
}

func TestThreeRunnersPageOnce(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const incidents = 20
	for n := range incidents {
		d.incidentAt(incident.OutcomeUnknown, fmt.Sprintf("sim%d", n))
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

// run starts the runner of a daemon, as a process of its own would.
func (d *desk) run(settings pages.Settings) {
	d.t.Helper()
	pool, err := jobs.OpenPool(d.t.Context(), pgpool.At(d.url))
	if err != nil {
		d.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	runner, err := jobs.New(pool, log, prometheus.NewRegistry(), pages.New(pool, settings, log, prometheus.NewRegistry()))
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
	const refused = 12 // more than are sent at once
	for n := range refused {
		d.incidentAt(incident.OutcomeUnknown, fmt.Sprintf("sim%d", n))
	}
	good := d.incident(incident.CompensationFailed)
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
func TestPagesOfAProcessThatDiedAreSentByOthers(t *testing.T) {
	t.Parallel()
	d, r := newDesk(t), newReceiver(t)
	const left = 12 // more than are sent at once
	for n := range left {
		d.incidentAt(incident.OutcomeUnknown, fmt.Sprintf("sim%d", n))
		d.exec(`INSERT INTO outbox.river_job (kind, queue, state, args, attempt, max_attempts, attempted_at, attempted_by)
			VALUES ('page_send', 'pages', 'running', jsonb_build_object('channel', 'slack'), 1, 1, now(), '{gone}')`)
	}
	d.incident(incident.CompensationFailed)
	d.work(quick(channel("slack", pages.NewSlack(r.server.URL))))
	told := map[string]bool{}
	for range left + 1 {
		told[r.next().body] = true
	}
	if len(told) != left+1 {
		t.Errorf("told is of %d incidents, want all %d", len(told), left+1)
	}
}

type senderFunc func(context.Context) error

func (s senderFunc) Send(ctx context.Context, _ pages.Page) error { return s(ctx) }

func TestAPageThatAShutdownMeetsIsRecordedBeforeItEnds(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.incident(incident.HistoryChanged)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	pager := pages.New(d.db, quick(channel("slack", senderFunc(func(context.Context) error {
		stop() // the page has arrived when the shutdown begins
		return nil
	}))), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	incidents := make(chan struct{}, 1)
	incidents <- struct{}{}
	if err := pager.Run(ctx, incidents); err != nil {
		t.Fatal(err)
	}
	if told := drainertest.Value[*string](t, d.db, `SELECT max(told) FROM outbox.page`); told == nil || *told != "open" {
		t.Error("the page was sent, and is not recorded: it would be sent again")
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
			d.incident(incident.OutcomeUnknown)
			drainertest.Eventually(t, "it says what fails", func() bool {
				said := d.log.String()
				return strings.Contains(said, "cannot look after incidents; the next look will try again") && strings.Contains(said, fails)
			})
			d.exec(test.mends)
			r.expect("trigger")
		})
	}
}

// desk is an outbox with an operator who looks after its incidents.
type desk struct {
	t       *testing.T
	url     string
	db      *pgxpool.Pool
	metrics *prometheus.Registry
	log     drainertest.Log
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, url: drainertest.Database(t), metrics: prometheus.NewRegistry()}
	d.db = drainertest.Connect(t, d.url)
	return d
}

// quick returns settings with many looks and retries a second, and without repetitions.
func quick(channels ...pages.Channel) pages.Settings {
	settings := pages.Defaults(channels, []string{"sim"})
	settings.Interval = 100 * time.Millisecond
	settings.Retry = func(int) time.Duration { return 0 }
	return settings
}

func channel(name string, sender pages.Sender) pages.Channel {
	return pages.Channel{Name: name, Repeat: time.Hour, Sender: sender}
}

// work runs the pager as a daemon would, with a River that polls more often.
func (d *desk) work(settings pages.Settings) *pages.Pager {
	d.t.Helper()
	log := slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	pager := pages.New(d.db, settings, log, d.metrics)
	workers := river.NewWorkers()
	pager.Register(workers)
	client, err := river.NewClient(riverpgxv5.New(d.db), &river.Config{
		Schema:            "outbox",
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}, jobs.QueuePages: {MaxWorkers: jobs.MaxChannels}},
		Workers:           workers,
		PeriodicJobs:      pager.Periodic(),
		Logger:            log,
		FetchCooldown:     10 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		TestOnly:          true,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	if err := client.Start(context.WithoutCancel(d.t.Context())); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := client.StopAndCancel(context.WithoutCancel(d.t.Context())); err != nil {
			d.t.Error(err)
		}
	})
	return pager
}

// incident opens an incident of a new intent, and returns the incident's id.
func (d *desk) incident(kind incident.Kind) int64 {
	d.t.Helper()
	return d.incidentAt(kind, "sim")
}

func (d *desk) incidentAt(kind incident.Kind, provider string) int64 {
	d.t.Helper()
	return one[int64](d, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
		SELECT $1, intent_id, 'run-`+canary+`' FROM outbox.enqueue('run-`+canary+`', gen_random_uuid()::text, $2 || '/act', 'scope-`+canary+`', '{"card": "`+canary+`"}')
		RETURNING id`, kind, provider)
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	drainertest.Exec(d.t, d.db, sql, args...)
}

func one[V any](d *desk, sql string, args ...any) V {
	d.t.Helper()
	return drainertest.Value[V](d.t, d.db, sql, args...)
}

// looks waits until the pager has looked several times more, and has sent all pages that it found.
func (d *desk) looks() {
	d.t.Helper()
	const finished = `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed'`
	before := one[int](d, finished)
	drainertest.Eventually(d.t, "three more looks, and nothing left to send", func() bool {
		return one[int](d, finished) >= before+3 &&
			one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_send' AND finalized_at IS NULL`) == 0
	})
}

// value returns the value of a series as /metrics shows it, and whether the series exists.
func (d *desk) value(name string, labels map[string]string) (float64, bool) {
	d.t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			matches := family.GetName() == name
			for _, pair := range metric.GetLabel() {
				matches = matches && labels[pair.GetName()] == pair.GetValue()
			}
			if matches {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

func (d *desk) assertPages(channel, outcome string, want float64) {
	d.t.Helper()
	got, found := d.value("drainer_pages_total", map[string]string{"channel": channel, "outcome": outcome})
	if !found || got != want {
		d.t.Errorf("drainer_pages_total{%s,%s} is %v (there: %t), want %v", channel, outcome, got, found, want)
	}
}

// assertDiscreet fails if the log or River's tables have a secret, or data of an agent.
func (d *desk) assertDiscreet() {
	d.t.Helper()
	kept := one[string](d, `SELECT coalesce(string_agg(row_to_json(j)::text, ' '), '') FROM outbox.river_job j`)
	for what, text := range map[string]string{"the log": d.log.String(), "River's jobs": kept} {
		if line, _, found := strings.Cut(text, canary); found {
			d.t.Errorf("%s shows a secret: %s", what, line[max(0, len(line)-200):])
		}
	}
}

func TestMain(m *testing.M) { drainertest.Main(m) }

func TestAReloadTellsOtherChannels(t *testing.T) {
	t.Parallel()
	d, before, after := newDesk(t), newReceiver(t), newReceiver(t)
	pager := d.work(quick(channel("first", pages.NewSlack(before.server.URL))))
	d.incident(incident.OutcomeUnknown)
	before.next()

	pager.Use([]pages.Channel{channel("second", pages.NewSlack(after.server.URL))}, []string{"sim"})
	for _, outcome := range []string{"delivered", "refused", "unreachable"} {
		if _, counted := d.value("drainer_pages_total", map[string]string{"channel": "second", "outcome": outcome}); !counted {
			t.Errorf("what is %s of the new channel is not counted from 0", outcome)
		}
	}
	after.next() // of the incident that the channel does not know yet
	d.incident(incident.CompensationFailed)
	if m := after.next(); !strings.Contains(m.body, "compensation_failed") {
		t.Errorf("the new channel got %s", m.body)
	}
	before.assertSilent()
}

func TestAPageUnderWayToAChannelThatIsGoneEnds(t *testing.T) {
	t.Parallel()
	d, down := newDesk(t), newReceiver(t)
	down.answer = func(_ int64, w http.ResponseWriter) bool { cut(w); return false }
	pager := d.work(quick(channel("gone", pages.NewSlack(down.server.URL))))
	d.incident(incident.OutcomeUnknown)
	drainertest.Eventually(t, "it is tried", func() bool { return down.tries.Load() > 0 })

	pager.Use(nil, []string{"sim"})
	d.looks() // looks also waits for the page's job
	tried := down.tries.Load()
	d.looks()
	if again := down.tries.Load(); again != tried {
		t.Errorf("the channel that is gone was tried %d times more", again-tried)
	}
}
