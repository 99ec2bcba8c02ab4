package census

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// outbox is an outbox in a database of its own.
type outbox struct {
	t   *testing.T
	url string
	db  *pgxpool.Pool
}

func newOutbox(t *testing.T) *outbox {
	t.Helper()
	url := drainertest.Database(t)
	db := drainertest.Connect(t, url)
	return &outbox{t: t, url: url, db: db}
}

func (o *outbox) exec(sql string, args ...any) {
	o.t.Helper()
	drainertest.Exec(o.t, o.db, sql, args...)
}

// enqueue commits intents of a run: the steps from to to-1.
func (o *outbox) enqueue(run, tool string, from, to int) {
	o.t.Helper()
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT $1, n::text, $2, 'scope', '{}' FROM generate_series($3::int, $4::int - 1) n`, run, tool, from, to)
}

// settle settles all queued rows.
func (o *outbox) settle() {
	o.t.Helper()
	o.exec(`WITH gone AS (DELETE FROM outbox.queue RETURNING intent_id)
		INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) SELECT intent_id, 1, 'w', 'completed', 'completed' FROM gone`)
}

// expire ends the current lease, as the passing of time would.
func (o *outbox) expire() {
	o.t.Helper()
	o.exec(`UPDATE outbox.census SET leads_until = now() - interval '1 second'`)
}

// process is the census of one replica, with its metrics and its log.
type process struct {
	*Census
	t        *testing.T
	registry *prometheus.Registry
	said     *bytes.Buffer
}

var sim = dispatch.Provider{Name: "sim", Tools: map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent, KeyTTL: 2 * time.Hour}}}

// process returns a process that connects with the rights of a daemon.
func (o *outbox) process(providers ...dispatch.Provider) *process {
	o.t.Helper()
	config, err := pgxpool.ParseConfig(o.url)
	if err != nil {
		o.t.Fatal(err)
	}
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["role"] = "outbox_drainer"
	pool, err := pgxpool.NewWithConfig(o.t.Context(), config)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(pool.Close)
	p := &process{t: o.t, registry: prometheus.NewRegistry(), said: &bytes.Buffer{}}
	p.Census = New(pool, providers, slog.New(slog.NewTextHandler(p.said, nil)), p.registry)
	return p
}

// count takes a sample now, if the process leads.
func (p *process) count() {
	p.t.Helper()
	p.sampled = time.Time{}
	p.round(p.t.Context())
	if strings.Contains(p.said.String(), "cannot count") {
		p.t.Fatal(p.said.String())
	}
}

// shown returns the value of each series, by its name and its labels' values.
func (p *process) shown() map[string]float64 {
	p.t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	shown := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "drainer_")
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			shown[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return shown
}

func (p *process) assertShows(want map[string]float64) {
	p.t.Helper()
	shown := p.shown()
	for series, value := range want {
		if got, is := shown[series]; !is || got != value {
			p.t.Errorf("%s is %v (shown: %v), want %v", series, got, is, value)
		}
	}
}

// assertAge checks that the series is about want seconds. The test's own time may be added.
func (p *process) assertAge(series string, want float64) {
	p.t.Helper()
	if got := p.shown()[series]; got < want || got > want+30 {
		p.t.Errorf("%s is %v, want about %v", series, got, want)
	}
}

// counts reports whether the process shows the gauges.
func (p *process) counts() bool {
	p.t.Helper()
	_, shows := p.shown()["census_duration_seconds"]
	return shows
}

func (p *process) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Error(err)
		}
	}
}
