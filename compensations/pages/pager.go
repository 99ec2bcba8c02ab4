// Package pages tells humans what only a human can decide.
//
//	incident opened ─▶ look, every few seconds: which channel has not heard of it?
//	                     │ a job for each such channel
//	                     ▼
//	                   send ──▶ told: open ──▶ again as the group grows, and every
//	                     ▲                     repeat, until acknowledged, then resolved
//	                     └── the channel is down: later, as often as it takes
//
// A page is about a group: the incidents of one kind at one provider, of those that the
// channel's match chooses. A row of outbox.page is one opening of a group for one channel.
// New incidents join it while one that it was told of is open, and begin another opening
// after that.
//
// A channel is brought up to date: it is told what a group is now, whenever
// that is not what it was told last. So a job may run twice or be cut off
// anywhere, and what was missed while a channel was down is not repeated to it.
// The row of the page says who is at it and when it is tried again, by the
// database's clock; a job of River only starts it.
//
// The look also opens the incidents that no commit of the engine can: keys that
// collided, whose transactions were rolled back, and providers that no daemon
// serves.
package pages

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/postgres/sql"
)

// Settings configure a pager.
type Settings struct {
	Channels  []Channel // none: incidents are opened, and no human is paged
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
	busy     sync.Map // the channels that a job of this process is at
	metrics  *metrics
	log      *slog.Logger
}

// audience holds the channels, and the providers whose incidents they get.
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

// Use sends to these channels from the next look on, and the pages that are under
// way to a channel that is none of them end. What is being sent is sent.
func (p *Pager) Use(channels []Channel, providers []string) {
	p.metrics.announce(channels)
	p.audience.Store(&audience{channels, providers})
}

// Kinds are those of its jobs.
func (p *Pager) Kinds() []string { return []string{lookArgs{}.Kind(), sendArgs{}.Kind()} }

// Run brings all channels up to date whenever there is an incident that cannot wait for a look: after a failover, River has
// to find a leader first.
func (p *Pager) Run(ctx context.Context, incidents <-chan struct{}) error {
	var updates sync.WaitGroup
	defer updates.Wait() // what was sent is still recorded, with the pool that the caller closes
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-incidents:
		}
		for _, channel := range p.audience.Load().channels {
			updates.Go(func() {
				if err := p.update(ctx, channel.Name); err != nil && ctx.Err() == nil {
					p.log.Error("cannot page at once; the next look will try again", "channel", channel.Name, "error", err)
				}
			})
		}
	}
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

// lookArgs is the leader's job that finds out who is to be told what.
type lookArgs struct{}

func (lookArgs) Kind() string { return jobs.KindPageLook }

// InsertOpts leave out retries: the next look comes soon.
func (lookArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

type lookWorker struct {
	river.WorkerDefaults[lookArgs]
	pager *Pager
}

// Work takes its steps whether or not the one before failed: not being able to
// notice one thing must not keep another from being told.
func (w *lookWorker) Work(ctx context.Context, _ *river.Job[lookArgs]) error {
	p, told := w.pager, w.pager.audience.Load()
	errs := []error{p.store.notice(ctx, told.providers)}
	for _, channel := range told.channels {
		errs = append(errs, p.enqueue(ctx, channel))
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() == nil {
		p.log.Error("cannot look after incidents; the next look will try again", "error", err)
	}
	return err
}

// enqueue inserts a job for the channel, unless it is up to date or a job waits. Looks
// that overlap may insert two: the rows of the pages let one of them send each.
func (p *Pager) enqueue(ctx context.Context, channel Channel) error {
	waits, err := p.store.waits(ctx, channel)
	if err != nil || waits {
		return err
	}
	due, err := p.store.due(ctx, channel, 1)
	if err != nil || len(due) == 0 {
		return err
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).Insert(ctx, sendArgs{channel.Name}, nil); err != nil {
		return fmt.Errorf("insert page jobs: %w", err)
	}
	return nil
}

// sendArgs is the job that brings one channel up to date.
type sendArgs struct {
	Channel string `json:"channel"`
}

func (sendArgs) Kind() string { return "page_send" }

// InsertOpts leave repeating to the looks, which ask the database when a page is
// due. River would ask the clock of the process that failed, and would take the job
// of a process that was killed for one that runs.
func (sendArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: jobs.QueuePages, MaxAttempts: 1}
}

var (
	//go:embed sql/due.sql
	dueSQL string
	//go:embed sql/waits.sql
	waitsSQL string
	//go:embed sql/begin.sql
	beginSQL string
	//go:embed sql/missed.sql
	missedSQL string
	//go:embed sql/told.sql
	toldSQL string
)

// updateAfter is how often a channel hears at most that a group grew, unless the group
// doubled: then it hears at once.
const updateAfter = 5 * time.Minute

// unconfiguredAfter leaves time to deploy the agent before its drainer.
const unconfiguredAfter = 5 * time.Minute

const (
	// unknownAfter leaves time to roll a configuration out.
	unknownAfter = 15 * time.Minute
	// mostUnknown bounds what an agent can page for with made-up names.
	mostUnknown = 20
)

type store struct{ pool *pgxpool.Pool }

// waits says whether a job for the channel does. One that runs is not asked: its process
// may be dead.
func (s store) waits(ctx context.Context, channel Channel) (waits bool, err error) {
	err = s.pool.QueryRow(ctx, waitsSQL, sendArgs{}.Kind(), channel.Name).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look for page jobs: %w", err)
	}
	return waits, nil
}

// due lists what a channel is to be told, and nothing that another process is sending. Of
// nine pages about three are of new groups, as long as there are such, and one is a
// repetition.
func (s store) due(ctx context.Context, channel Channel, limit int) ([]Page, error) {
	// CollectRows returns the error too.
	rows, _ := s.pool.Query(ctx, dueSQL, channel.Name, channel.Repeat.Seconds(), updateAfter.Seconds(), limit,
		channel.Match.Chosen(), channel.Match.Providers, channel.Match.Tools)
	pages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Page, err error) {
		err = row.Scan(&p.Outbox, &p.IncidentID, &p.Generation, &p.State, &p.Kind, &p.IntentID, &p.ToolName, &p.IdempotencyKey,
			&p.OpenedAt, &p.By, &p.Count, &p.FirstIsOver, &p.Newest, &p.Sends)
		p.IsNarrow = channel.Match.Tools != nil || channel.Match.Providers != nil && spansProviders(p.Kind)
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for due pages: %w", err)
	}
	return pages, nil
}

// begin records that the page may have reached the channel from now on. It returns
// the number of this try, or 0 if another process is sending the page.
func (s store) begin(ctx context.Context, channel string, page Page) (try int, err error) {
	err = s.pool.QueryRow(ctx, beginSQL, channel, page.IncidentID, page.Generation, sendTimeout.Seconds(), page.Sends,
		page.Count, page.Newest).Scan(&try)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("begin a page: %w", err)
	}
	return try, nil
}

// missed says that the channel did not take it, and how long to leave it alone.
func (s store) missed(ctx context.Context, channel string, page Page, wait time.Duration) error {
	return s.execute(ctx, "put a page off", missedSQL, channel, page.IncidentID, page.Generation, wait.Seconds())
}

// recordSent says that it did.
func (s store) recordSent(ctx context.Context, channel string, page Page) error {
	return s.execute(ctx, "record a page", toldSQL, channel, page.IncidentID, page.Generation, page.State, page.Sends)
}

// notice opens and resolves the incidents that no commit of the engine can.
func (s store) notice(ctx context.Context, configured []string) error {
	return errors.Join(
		s.execute(ctx, "look for key collisions", sql.PagesCollided),
		s.execute(ctx, "look for unconfigured providers", sql.PagesUnconfigured, configured, unconfiguredAfter.Seconds()),
		s.execute(ctx, "look for refused configurations", sql.PagesRefused),
		s.execute(ctx, "look for unknown operations", sql.PagesUnknownOperation, unknownAfter.Seconds(), mostUnknown),
	)
}

func (s store) execute(ctx context.Context, what, statement string, args ...any) error {
	if _, err := s.pool.Exec(ctx, statement, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// outcome is how one try to send a page ended.
type outcome string

const (
	delivered outcome = "delivered"
	refused   outcome = "refused"
	unreached outcome = "unreachable"
)

type metrics struct{ pages *prometheus.CounterVec }

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "drainer", Name: "pages_total", Help: "Attempts to send a page, by how they ended.",
		}, []string{"channel", "outcome"}),
	}
	registerer.MustRegister(m.pages)
	return m
}

// announce counts for each channel from 0.
func (m *metrics) announce(channels []Channel) {
	for _, channel := range channels {
		for _, outcome := range []outcome{delivered, refused, unreached} {
			m.pages.WithLabelValues(channel.Name, string(outcome))
		}
	}
}

func (m *metrics) sent(channel string, ended outcome) {
	m.pages.WithLabelValues(channel, string(ended)).Inc()
}
