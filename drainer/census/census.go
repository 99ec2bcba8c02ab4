package census

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Provider is what a census knows of a configured provider.
type Provider struct {
	Name string
	// RetryWindows is, by the full name of a tool such as stripe/create_charge, how
	// long after the first send a row in doubt is still tried. A tool without an end has none.
	RetryWindows map[string]time.Duration
}

const (
	// renewInterval is how often the leader renews its lease, and others try to
	// take it: a dead leader is replaced within lease and renewInterval.
	renewInterval  = 2 * time.Second
	lease          = 6 * time.Second
	sampleInterval = 10 * time.Second
	sampleTimeout  = 10 * time.Second
	// reminderInterval spaces the warnings of what only a human can end.
	reminderInterval = time.Minute
)

// Census is one process's part in the counting. Create one with [New].
type Census struct {
	store    store
	board    *board
	counters *counters
	leads    prometheus.Gauge
	log      *slog.Logger

	configured atomic.Pointer[configuration]

	// Only Run touches these.
	pins     pins
	sampled  time.Time
	reminded time.Time
}

// New registers the census's metrics; nothing is counted before [Census.Run].
// The pool is the caller's.
func New(pool *pgxpool.Pool, providers []Provider, log *slog.Logger, registerer prometheus.Registerer) *Census {
	c := &Census{
		store:    store{pool: pool, process: uuid.NewString()},
		counters: newCounters(),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "drainer", Name: "census_leader", Help: "1 on the process that counts what the tables hold, 0 on the others.",
		}),
		log:  log,
		pins: pins{},
	}
	c.board = newBoard(func(provider string) string { return c.configured.Load().label(provider) }, func() []string { return c.configured.Load().labels })
	c.Use(providers)
	registerer.MustRegister(c.board, c.counters.duplicates, c.counters.collisions, c.leads)
	return c
}

// Use shows another configuration from now on.
func (c *Census) Use(providers []Provider) {
	configured := configurationOf(providers)
	c.counters.announce(configured.labels)
	c.configured.Store(configured)
}

// Run counts whenever this process leads, until ctx ends.
func (c *Census) Run(ctx context.Context) error {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	defer c.resign(ctx)
	for {
		c.turn(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// turn renews the lease or tries to get it, and samples when it is time to.
func (c *Census) turn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	window, leads, err := c.store.lead(ctx)
	if err == nil {
		c.lead(leads)
		if leads && time.Since(c.sampled) >= sampleInterval {
			err = c.sample(ctx, window)
		}
	}
	if err != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
		c.log.Warn("cannot count what the tables hold; its gauges end until somebody can", "error", err)
	}
}

func (c *Census) lead(leads bool) {
	c.leads.Set(0)
	if leads {
		c.leads.Set(1)
		return
	}
	c.board.clear()
	c.pins, c.sampled = pins{}, time.Time{}
}

func (c *Census) sample(ctx context.Context, window window) error {
	started := time.Now()
	counting := c.board.wasRead()
	sample, err := c.store.sample(ctx, c.configured.Load(), window, counting)
	if err != nil {
		return err
	}
	c.pins.see(sample.Pins, started)
	c.sampled = started
	c.board.show(sample, time.Since(started))
	c.counters.add(sample, c.configured.Load())
	c.remind(sample)
	return nil
}

// remind warns of rows that no lane of this process looks at. Their provider is
// a part of a key, so it is not named.
func (c *Census) remind(sample *Sample) {
	waiting := 0
	for _, queued := range sample.Queues {
		if c.configured.Load().label(queued.Provider) == unconfigured {
			waiting += queued.Waiting + queued.Due
		}
	}
	if waiting > 0 && time.Since(c.reminded) >= reminderInterval {
		c.reminded = time.Now()
		c.log.Warn("rows wait for a provider that is not configured here; drainer doctor names it", "rows", waiting)
	}
}

// resign spares the others the wait for the lease's end.
func (c *Census) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewInterval)
	defer cancel()
	c.lead(false)
	if err := c.store.resign(ctx); err != nil {
		c.log.Warn("cannot hand over the counting; another process takes it when the lease is over", "error", err)
	}
}
