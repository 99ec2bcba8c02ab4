package drainer

import (
	"context"
	"log/slog"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// linger gathers outcomes for a turn while others are still on their way.
	linger = 5 * time.Millisecond
	// pollInterval bounds the wait for rows that no notification announced.
	pollInterval = 250 * time.Millisecond
	// fullTurn is a turn's worth of outcomes: more gain little.
	fullTurn = 1000
	// manyOutcomes are worth a look whether enough has come for a turn.
	manyOutcomes = 64
	// maxTurnOctets bounds the responses that one turn stores for a lane.
	maxTurnOctets = 4 << 20
	// turnsOfWork are claimed ahead: dispatchers have one turn's worth left to do
	// while the next turn, which fetches more, is under way.
	turnsOfWork = 2
	// maxPrefetch bounds the rows that wait in memory for a free dispatcher, and
	// maxPrefetchOctets their payloads.
	maxPrefetch       = 1750
	maxPrefetchOctets = 16 << 20
	// reclaimInterval is how often a lane looks for claims whose reply it lost
	// and whose commit came later than its first look.
	reclaimInterval = 5 * time.Second
)

// databaseBackoff spaces a lane's turns while the database fails.
var databaseBackoff = dispatch.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// lane drains one provider, through itself or through its fallback. Its goroutine alone reads and writes the fields
// below the line; dispatchers meet it only through their rows and outcomes.
type lane struct {
	provider   string               // whose rows
	server     *upstream            // who serves them: the provider, or its fallback
	fallback   string               // whose rows this lane leaves alone; empty for nobody's
	upstreams  map[string]*upstream // of all providers
	closings   *closings
	worker     string
	turns      *turns
	claims     claimStore
	lease      *lease
	observer   *observer
	tracing    *tracing
	log        *slog.Logger
	sagaMoved  func(Settlement)
	prefetches bool          // rows may wait here for a free dispatcher
	once       bool          // stop when nothing is due
	wake       chan struct{} // capacity 1; written by the listener

	dispatchers dispatchers
	outcomes    *outcomes
	pulse       pulse // beats with every round of the loop

	// ----
	settled     []Settlement // outcomes that no turn has taken yet
	pending     pending      // turns that have begun
	failed      error        // why one of these failed
	emptied     []int64      // claims to finish: their rows are settled
	shelf       shelf
	remembered  map[int64]int // claim id → rows of it that no commit has settled yet
	outstanding int           // rows in jobs, in dispatch or in outcomes
	probes      int           // of these rows and the unconfirmed outcomes
	prefetch    int
	heft        int // octets of a payload, on average of the newest claim
	scan        scan
	idle        idleness
	failures    int // turns in a row that the database failed
	reclaimAt   time.Time
	stoppedAt   time.Time // when it first saw that it is to stop
	shut        bool      // it drained once, and ended at a shut gate
}

func newLane(route route, session *session) *lane {
	own, server := session.upstreams[route.provider], session.upstreams[route.server]
	prefetches := !route.isDetour() && server.provider.mayPrefetch() // what takes a detour could soon be served by another
	room := server.provider.Concurrency
	if prefetches {
		room += maxPrefetch
	}
	return &lane{
		provider:    route.provider,
		server:      server,
		fallback:    own.provider.Fallback,
		upstreams:   session.upstreams,
		closings:    session.closings,
		worker:      session.worker,
		turns:       session.turns,
		claims:      session.store,
		lease:       session.lease,
		observer:    session.observer,
		tracing:     session.tracing,
		log:         session.log.With("provider", route.provider, "server", route.server),
		sagaMoved:   session.sagaMoved,
		prefetches:  prefetches,
		once:        session.settings.Once,
		wake:        make(chan struct{}, 1),
		pending:     newPending(),
		dispatchers: dispatchers{jobs: make(chan *Row, room)},
		outcomes:    newOutcomes(),
		remembered:  map[int64]int{},
		reclaimAt:   time.Now().Add(reclaimInterval),
	}
}

// route is whose rows go where.
type route struct{ provider, server string }

func (r route) isDetour() bool { return r.provider != r.server }

// lifetimes are the three ends a lane heeds, each later than the one before:
// stop ends claiming, abort cancels what is in flight, giveUp ends settling.
type lifetimes struct{ stop, abort, giveUp context.Context }

// run drains until it is told to stop and everything it claimed is settled.
// The error says that it had to give up with outcomes unsettled.
func (l *lane) run(life lifetimes) error {
	defer l.pulse.end() // its session may last for long yet, for the sake of other lanes
	l.dispatchers.assemble(l.server.provider.Concurrency, func(next func() *Row) { l.dispatchAll(life, next) })
	for !l.finished(life.stop) && life.giveUp.Err() == nil {
		l.round(life)
	}
	l.dispatchers.dismiss()
	if l.unsettled() {
		return context.Cause(life.giveUp) // without waiting for an adapter that ignores its context
	}
	l.dispatchers.all.Wait()
	l.shut = l.isShut(life.stop)
	return nil
}

// dispatchAll is one dispatcher. It has a context of its own: below a common one
// all attempts would wait for each other's lock, twice each.
func (l *lane) dispatchAll(life lifetimes, next func() *Row) {
	var done context.CancelFunc
	life.abort, done = context.WithCancel(life.abort)
	defer done()
	for row := next(); row != nil; row = next() {
		outcome := l.attempt(life, row)
		outcome.Row.forgetIntent()
		l.outcomes.put(outcome)
	}
}

func (l *lane) round(life lifetimes) {
	if !l.hangs(life) && !l.pending.overdue() {
		l.pulse.beat()
	}
	switch {
	case life.stop.Err() != nil:
		l.giveBack(0, "")
	case l.barred():
		l.giveBack(fleetInterval, "provider_shut")
	}
	if l.await(life) {
		l.begin(life)
	}
	if l.failed != nil && !l.pending.any() {
		l.backOff(life)
	}
}

// hangs reports that an adapter ignores its context, which was cancelled or has
// run out: only a restart ends that. Outcomes that wait for the database to
// come back are no such case.
func (l *lane) hangs(life lifetimes) bool {
	if life.stop.Err() == nil {
		return false
	}
	if l.stoppedAt.IsZero() {
		l.stoppedAt = time.Now()
	}
	isOver := life.abort.Err() != nil || time.Since(l.stoppedAt) > l.longestDispatch()
	return isOver && l.outstanding > l.outcomes.len()
}

// longestDispatch is of all providers: a lane also hands rows to fallbacks.
func (l *lane) longestDispatch() (longest time.Duration) {
	for _, upstream := range l.upstreams {
		longest = max(longest, upstream.provider.Timeout)
	}
	return longest
}

// giveBack withdraws what no dispatcher has begun: others need not wait until
// what is under way is done here. A probe stays: it is to pass the shut gate.
func (l *lane) giveBack(delay time.Duration, class string) {
	for range l.dispatchers.waiting() {
		row := l.dispatchers.take()
		switch {
		case row == nil:
			return
		case row.Probe && class != "":
			l.dispatchers.hand(row)
		default:
			row.forgetIntent()
			l.settled = append(l.settled, l.withdraw(row, delay, class))
			l.collected(1)
		}
	}
}

func (l *lane) finished(stop context.Context) bool {
	if l.unsettled() {
		return false
	}
	return stop.Err() != nil || (l.once && (l.scan.nothing || l.barred()))
}

// unsettled includes a turn in doubt: it may have claimed rows.
func (l *lane) unsettled() bool {
	return l.outstanding > 0 || len(l.settled) > 0 || len(l.emptied) > 0 || l.pending.any() || l.failures > 0
}

func (l *lane) collected(rows int) {
	l.outstanding -= rows
	l.observer.ended(l.provider, rows)
}
