package pages

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
)

// Settings are what a pager needs to know.
type Settings struct {
	Channels  []Channel // none: incidents are opened and counted, and nobody is told
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
	settings Settings
	channels map[string]Channel
	metrics  *metrics
	log      *slog.Logger
}

var _ jobs.Part = (*Pager)(nil)

// New registers the pager's metrics. The pool is the caller's.
func New(pool *pgxpool.Pool, settings Settings, log *slog.Logger, registerer prometheus.Registerer) *Pager {
	p := &Pager{store: store{pool}, settings: settings, channels: map[string]Channel{}, log: log}
	for _, channel := range settings.Channels {
		p.channels[channel.Name] = channel
	}
	p.metrics = newMetrics(settings.Channels, registerer)
	return p
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
