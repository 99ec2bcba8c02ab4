package pages_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainertest"
)

// desk is an outbox with somebody who looks after its incidents.
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

// quick looks and retries many times a second, and repeats nothing.
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
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}, jobs.QueuePages: {MaxWorkers: 4}},
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

// incident opens one of a new intent, and returns its id.
func (d *desk) incident(kind pages.Kind) int64 {
	d.t.Helper()
	return one[int64](d, `INSERT INTO outbox.incident (kind, intent_id, agent_run_id)
		SELECT $1, intent_id, 'run-`+canary+`' FROM outbox.enqueue('run-`+canary+`', gen_random_uuid()::text, 'sim/act', 'scope-`+canary+`', '{"card": "`+canary+`"}')
		RETURNING id`, kind)
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	drainertest.Exec(d.t, d.db, sql, args...)
}

func one[V any](d *desk, sql string, args ...any) V {
	d.t.Helper()
	return drainertest.Value[V](d.t, d.db, sql, args...)
}

// looks waits until somebody has looked several times more, and all that was
// found has been sent.
func (d *desk) looks() {
	d.t.Helper()
	const finished = `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed'`
	before := one[int](d, finished)
	drainertest.Eventually(d.t, "three more looks, and nothing left to send", func() bool {
		return one[int](d, finished) >= before+3 &&
			one[int](d, `SELECT count(*) FROM outbox.river_job WHERE kind = 'page_send' AND finalized_at IS NULL`) == 0
	})
}

// value is a series as /metrics shows it, and whether it is there.
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

// assertDiscreet fails if anything of an agent or a secret was logged or kept
// in River's tables.
func (d *desk) assertDiscreet() {
	d.t.Helper()
	kept := one[string](d, `SELECT coalesce(string_agg(row_to_json(j)::text, ' '), '') FROM outbox.river_job j`)
	for what, text := range map[string]string{"the log": d.log.String(), "River's jobs": kept} {
		if line, _, found := strings.Cut(text, canary); found {
			d.t.Errorf("%s shows a secret: %s", what, line[max(0, len(line)-200):])
		}
	}
}
