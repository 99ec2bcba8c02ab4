package pages

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
)

// Settings are what a pager needs to know.
type Settings struct {
	Channels  []Channel // none: incidents are opened, and nobody is told
	Providers []string  // those that this process serves
	Interval  time.Duration
	Retry     func(failures int) time.Duration // how long a channel that failed is left alone
}

// Defaults fill in what is seldom another.
func Defaults(channels []Channel, providers []string) Settings {
	return Settings{Channels: channels, Providers: providers, Interval: 3 * time.Second, Retry: Backoff}
}

// Backoff ends at a minute, so that a channel that is back hears soon.
func Backoff(failures int) time.Duration {
	return dispatch.Backoff{Base: 2 * time.Second, Cap: time.Minute}.Delay(failures, 0, rand.Float64())
}

// Pager is a part for [jobs.New].
type Pager struct {
	store    store
	settings Settings // all but whom to tell of what, which is audience
	audience atomic.Pointer[audience]
	metrics  *metrics
	log      *slog.Logger
}

// audience is who is told, and of which providers.
type audience struct {
	channels  []Channel
	providers []string
}

func (a *audience) channel(name string) (Channel, bool) {
	for _, channel := range a.channels {
		if channel.Name == name {
			return channel, true
		}
	}
	return Channel{}, false
}

var _ jobs.Part = (*Pager)(nil)

// New registers the pager's metrics. The pool is the caller's.
func New(pool *pgxpool.Pool, settings Settings, log *slog.Logger, registerer prometheus.Registerer) *Pager {
	p := &Pager{store: store{pool}, settings: settings, metrics: newMetrics(registerer), log: log}
	p.Use(settings.Channels, settings.Providers)
	return p
}

// Use tells these channels from the next look on, and the pages that are under
// way to a channel that is none of them end. What is being sent is sent.
func (p *Pager) Use(channels []Channel, providers []string) {
	p.metrics.announce(channels)
	p.audience.Store(&audience{channels, providers})
}

// Register adds the pager's workers.
func (p *Pager) Register(workers *river.Workers) {
	river.AddWorker(workers, &lookWorker{pager: p})
	river.AddWorker(workers, &sendWorker{pager: p})
}

// Periodic is the look.
func (p *Pager) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(p.settings.Interval),
		func() (river.JobArgs, *river.InsertOpts) { return lookArgs{}, nil },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}
