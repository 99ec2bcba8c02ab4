// Package pages sends pages about incidents to humans.
//
//	incident opened ─▶ look, every few seconds: for which channels is a page due?
//	                     │ a job for each such channel
//	                     ▼
//	                   send ──▶ the row says: open ──▶ sent again as the group grows and each
//	                     ▲                             Repeat, until acknowledged or resolved
//	                     └── the channel fails: retried later, without an end
//
// A page is about a group: the incidents of one kind at one provider that the channel's match chooses. A row of
// outbox.page is one opening of a group for one channel. New incidents join the opening while an incident that was
// paged is open. After that, they begin another opening.
//
// A page is due if the group has changed since the last page about it, or when that page is repeated. So a job may
// run twice or end at any point, and a channel that was down gets only the present state. The page's row says until
// when a process is sending the page, and when it is tried again, by the database's clock. A job of River only
// starts the sending.
//
// The look also opens the incidents that no commit of the engine can open. These are for keys that collided, because
// their transactions were rolled back, and for providers and operations that no daemon serves.
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
	Channels  []Channel                        // empty: incidents are opened, but no human is paged
	Providers []string                         // the providers that this process serves
	Interval  time.Duration                    // between looks
	Retry     func(failures int) time.Duration // how long to wait before a page that failed is tried again
}

// Defaults returns settings with the usual interval and retry.
func Defaults(channels []Channel, providers []string) Settings {
	return Settings{Channels: channels, Providers: providers, Interval: 3 * time.Second, Retry: Backoff}
}

// Backoff returns the usual delay before the next try. It is at most a minute, so that a channel that works again is
// paged soon.
func Backoff(failures int) time.Duration {
	return dispatch.Backoff{Base: 2 * time.Second, Cap: time.Minute}.Delay(failures, 0, rand.Float64())
}

// Pager is the part of River's jobs that looks for incidents and pages.
type Pager struct {
	store    store
	settings Settings // its Channels and Providers are replaced by audience
	audience atomic.Pointer[audience]
	busy     sync.Map // the channels that this process is updating
	looks    pace
	turn     int // of the channels; only one look runs at a time
	metrics  *metrics
	log      *slog.Logger
}

// audience holds the channels, and the providers that this process serves.
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

// New returns a Pager with its metrics registered. The caller closes the pool.
func New(pool *pgxpool.Pool, settings Settings, log *slog.Logger, registerer prometheus.Registerer) *Pager {
	p := &Pager{store: store{pool}, settings: settings, metrics: newMetrics(registerer), log: log}
	p.Use(settings.Channels, settings.Providers)
	return p
}

// Use replaces the channels and providers, from the next look on. Updates of a channel that is no longer configured
// end, but a page that is being sent is still sent.
func (p *Pager) Use(channels []Channel, providers []string) {
	p.metrics.announce(channels)
	p.audience.Store(&audience{channels, providers})
}

// Kinds implements [jobs.Part].
func (p *Pager) Kinds() []string { return []string{lookArgs{}.Kind(), sendArgs{}.Kind()} }

// Run updates all channels each time that incidents receives, until ctx ends. These are incidents that cannot wait for a
// look: after a failover, River has to find a leader first.
func (p *Pager) Run(ctx context.Context, incidents <-chan struct{}) error {
	var updates sync.WaitGroup
	defer updates.Wait() // they still record sent pages with the pool, which the caller closes then
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

// Periodic returns the look. It starts when the process begins to lead, and then each Interval.
func (p *Pager) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(p.settings.Interval),
		func() (river.JobArgs, *river.InsertOpts) { return lookArgs{}, nil },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}

// lookArgs is the leader's job that opens incidents and finds the channels with due pages.
type lookArgs struct{}

func (lookArgs) Kind() string { return jobs.KindPageLook }

// InsertOpts turns retries off, since the next look comes soon.
func (lookArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

type lookWorker struct {
	river.WorkerDefaults[lookArgs]
	pager *Pager
}

// pace keeps this process's looks from piling up. A look takes about 5 µs for each incident that is not resolved, once for
// each channel. An outage may leave a million incidents.
type pace struct {
	mu   sync.Mutex // held during a look
	next time.Time
}

// errPaced ends the job of a look that was left out. The job counts as cancelled, because a completed job would tell the
// probes and alerts that the pager has looked.
var errPaced = errors.New("another look runs, or has just taken long")

// do leaves the look out if another one runs, or during the pause behind it.
func (p *pace) do(look func() error) error {
	if !p.mu.TryLock() {
		return river.JobCancel(errPaced)
	}
	defer p.mu.Unlock()
	began := time.Now()
	if began.Before(p.next) {
		return river.JobCancel(errPaced)
	}
	err := look()
	p.next = time.Now().Add(pauseAfter(time.Since(began)))
	return err
}

// pauseAfter returns a pause of twice the time that a look took. It is shorter after a look of more than 10 s, so that less
// than a minute passes from the begin of a look to the end of the next one: probes and alerts allow no more.
func pauseAfter(took time.Duration) time.Duration {
	return max(0, min(2*took, 50*time.Second-2*took, 20*time.Second))
}

func (w *lookWorker) Work(ctx context.Context, _ *river.Job[lookArgs]) error {
	return w.pager.looks.do(func() error { return w.pager.look(ctx) })
}

// look takes each step even if an earlier one failed: an error with one kind of incident or one channel must not
// delay the pages of others.
func (p *Pager) look(ctx context.Context) error {
	told := p.audience.Load()
	errs := []error{p.store.notice(ctx, told.providers)}
	for range told.channels {
		if ctx.Err() != nil { // the next look begins with this channel
			errs = append(errs, ctx.Err())
			break
		}
		errs = append(errs, p.enqueue(ctx, told.channels[p.turn%len(told.channels)]))
		p.turn++
	}
	err := errors.Join(errs...)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) { // a look that met its deadline is told too
		p.log.Error("cannot look after incidents; the next look will try again", "error", err)
	}
	return err
}

// enqueue inserts a job for the channel, unless no page is due or a job waits. Two looks that overlap may each insert
// a job. The rows of the pages let only one of the jobs send each page.
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

// InsertOpts turns River's retries off: the looks retry, by the database's clock. River would use the clock of
// the process that failed, and would take the job of a killed process for a running job.
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

// updateAfter is the least time between two pages about a group that grows. If the group has doubled, the page is
// due at once.
const updateAfter = 5 * time.Minute

// unconfiguredAfter is how long rows may wait for a provider that no worker serves. It leaves time to deploy an
// agent before its drainer.
const unconfiguredAfter = 5 * time.Minute

const (
	// unknownAfter is how long rows may wait for an operation that no worker knows. It leaves time to roll out a
	// configuration.
	unknownAfter = 15 * time.Minute
	// mostUnknown bounds the incidents that an agent can open with made-up names.
	mostUnknown = 20
)

type store struct{ pool *pgxpool.Pool }

// waits reports whether a job for the channel waits. It ignores a running job, since that job's process may be dead.
func (s store) waits(ctx context.Context, channel Channel) (waits bool, err error) {
	err = s.pool.QueryRow(ctx, waitsSQL, sendArgs{}.Kind(), channel.Name).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look for page jobs: %w", err)
	}
	return waits, nil
}

// due lists the pages that a channel should get, except those that another process is sending. While pages of all
// kinds are due, about 4 of 11 are about new groups, and 1 of 11 is a repetition.
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

// missed records that the channel did not accept the page, and after how long it is tried again.
func (s store) missed(ctx context.Context, channel string, page Page, wait time.Duration) error {
	return s.execute(ctx, "put a page off", missedSQL, channel, page.IncidentID, page.Generation, wait.Seconds())
}

// recordSent records that the channel accepted the page.
func (s store) recordSent(ctx context.Context, channel string, page Page) error {
	return s.execute(ctx, "record a page", toldSQL, channel, page.IncidentID, page.Generation, page.State, page.Sends)
}

// notice opens and resolves the incidents that no commit of the engine can open.
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

// announce makes the counters of each channel, so that they start at 0.
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
