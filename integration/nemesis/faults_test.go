package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/integration/program"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// failpoints is the name under which failpoints are counted. They are armed when a daemon starts, and are in no deck.
const failpoints = "failpoint"

// suspension is longer than a lease, and shorter than the margin of a lookup in the configuration. After this margin
// another worker relies on it that the request of a lost row can no longer arrive.
const suspension = 1400 * time.Millisecond

var processes = hand{name: "processes", before: 800 * time.Millisecond, deck: []fault{
	{name: "kill -9", cards: 3, inject: killed},
	{name: "SIGTERM", cards: 2, inject: terminated},
	{name: "SIGTERM twice", cards: 1, inject: terminatedTwice},
	{name: "SIGSTOP", cards: 3, inject: suspended},
	{name: "configuration changed", cards: 1, inject: reconfigured},
	{name: "SIGHUP", cards: 1, inject: reloaded},
}}

func killed(_ context.Context, a *arena, random *rand.Rand) error {
	return a.mortal(random).signal(syscall.SIGKILL)
}

func terminated(_ context.Context, a *arena, random *rand.Rand) error {
	return a.mortal(random).signal(syscall.SIGTERM)
}

func terminatedTwice(ctx context.Context, a *arena, random *rand.Rand) error {
	victim := a.mortal(random)
	if err := victim.signal(syscall.SIGTERM); err != nil {
		return err
	}
	linger(ctx, between(random, 0, 200*time.Millisecond))
	return victim.signal(syscall.SIGTERM)
}

// suspended waits for its whole time, even if the storm ends meanwhile.
func suspended(ctx context.Context, a *arena, random *rand.Rand) error {
	life, err := a.any(random).serving()
	if err != nil {
		return err
	}
	if err := life.Send(syscall.SIGSTOP); err != nil {
		return err
	}
	linger(context.WithoutCancel(ctx), between(random, suspension/2, suspension))
	return life.Send(syscall.SIGCONT)
}

func reconfigured(_ context.Context, a *arena, random *rand.Rand) error {
	return a.configuration.limit(4 * (2 + random.IntN(4)))
}

func reloaded(_ context.Context, a *arena, random *rand.Rand) error {
	return a.any(random).signal(syscall.SIGHUP)
}

var database = hand{name: "database", before: 800 * time.Millisecond, deck: []fault{
	{name: "replies to claims lost", cards: 2, inject: claimsUnheard},
	{name: "replies to commits lost", cards: 2, inject: commitsUnheard},
	{name: "connections cut", cards: 2, inject: cut},
	{name: "partition", cards: 2, inject: partitioned},
	{name: "black hole", cards: 2, inject: swallowed},
	{name: "connections half-open", cards: 1, inject: halfOpened},
	{name: "notifications lost", cards: 1, inject: notificationsLost},
	{name: "backends terminated", cards: 1, inject: backendsTerminated},
	{name: "Postgres crash", cards: 1, inject: crashed},
}}

func claimsUnheard(ctx context.Context, a *arena, random *rand.Rand) error {
	return lose(ctx, &a.any(random).line.Cuts, 1+random.Int64N(2))
}

// commitsUnheard loses answers to the agents' commits.
func commitsUnheard(ctx context.Context, a *arena, random *rand.Rand) error {
	return lose(ctx, &a.agents.line.LostCommits, 1+random.Int64N(3))
}

var errNothingLost = errors.New("no daemon had anything to lose")

// lose waits until a reply was lost, so that only a real loss is counted.
func lose(ctx context.Context, replies *atomic.Int64, most int64) error {
	replies.Store(most)
	defer replies.Store(0)
	for range 20 {
		if linger(ctx, 100*time.Millisecond); replies.Load() < most {
			return nil
		}
	}
	return errNothingLost
}

func cut(ctx context.Context, a *arena, random *rand.Rand) error {
	line := a.any(random).line
	line.TakeDown()
	defer line.BringUp()
	linger(ctx, between(random, 0, 200*time.Millisecond))
	return nil
}

// partitioned cuts off one, two or all replicas for longer than a lease.
func partitioned(ctx context.Context, a *arena, random *rand.Rand) error {
	lines := a.someLines(random)
	for _, line := range lines {
		line.TakeDown()
		defer line.BringUp()
	}
	linger(ctx, between(random, time.Second, 3*time.Second))
	return nil
}

// swallowed stops all data on some lines. Data that was written meanwhile arrives late, or never.
func swallowed(ctx context.Context, a *arena, random *rand.Rand) error {
	lines, late := a.someLines(random), random.IntN(2) == 0
	for _, line := range lines {
		line.Freeze()
		defer line.Thaw()
	}
	linger(ctx, between(random, 200*time.Millisecond, 2500*time.Millisecond))
	for _, line := range lines {
		if !late {
			line.TakeDown()
			defer line.BringUp()
		}
	}
	return nil
}

// halfOpened makes connections silent. They are closed later, as when a device in the network forgets them.
func halfOpened(ctx context.Context, a *arena, random *rand.Rand) error {
	line := a.any(random).line
	if line.Silence() == 0 {
		return errNoDaemon
	}
	linger(ctx, between(random, time.Second, 4*time.Second))
	line.TakeDown()
	line.BringUp()
	return nil
}

func notificationsLost(ctx context.Context, a *arena, random *rand.Rand) error {
	for _, replica := range a.fleet {
		replica.line.DropNotifications.Store(true)
		defer replica.line.DropNotifications.Store(false)
	}
	linger(ctx, between(random, time.Second, 2*time.Second))
	return nil
}

var errNoDaemon = errors.New("no daemon is there")

// backendsTerminated ends half of the sessions, also sessions of agents.
func backendsTerminated(ctx context.Context, a *arena, random *rand.Rand) error {
	var ended int
	err := a.DB.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND pid % 2 = $1`, random.IntN(2)).Scan(&ended)
	if err == nil && ended == 0 {
		return errNoDaemon
	}
	return err
}

func crashed(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.cluster.crash(ctx, between(random, 0, 1500*time.Millisecond))
}

var outside = hand{name: "outside", before: 600 * time.Millisecond, deck: []fault{
	{name: "provider outage", cards: 2, inject: outage},
	{name: "pager down", cards: 1, inject: pagerDown},
	{name: "provider paused", cards: 1, inject: paused},
	{name: "run cancelled", cards: 2, inject: runCancelled},
	{name: "run taken back", cards: 1, inject: runTakenBack},
	{name: "intent retried", cards: 2, inject: intentRetried},
	{name: "intent cancelled", cards: 1, lucky: true, inject: intentCancelled},
	{name: "saga retried", cards: 2, lucky: true, inject: sagaRetried},
	{name: "incident acknowledged", cards: 1, inject: incidentAcknowledged},
}}

// outage makes every request end with the same fault.
func outage(ctx context.Context, a *arena, random *rand.Rand) error {
	ends := []dispatchtest.Fault{
		dispatchtest.Unavailable, dispatchtest.OverloadedFor, dispatchtest.ErrorBefore,
		dispatchtest.DropBefore, dispatchtest.DropAfter, dispatchtest.Slow,
	}
	a.provider.outage.Store(&ends[random.IntN(len(ends))])
	defer a.provider.outage.Store(nil)
	linger(ctx, between(random, 500*time.Millisecond, 2*time.Second))
	return nil
}

func pagerDown(ctx context.Context, a *arena, random *rand.Rand) error {
	a.pager.down.Store(true)
	defer a.pager.down.Store(false)
	linger(ctx, between(random, time.Second, 2*time.Second))
	return nil
}

func paused(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.pause(random, func(string) error {
		linger(ctx, between(random, 500*time.Millisecond, 2*time.Second))
		return nil
	})
}

// intentCancelled pauses the provider first, so that an intent waits.
func intentCancelled(ctx context.Context, a *arena, random *rand.Rand) error {
	return a.pause(random, func(provider string) error {
		intent, err := a.oneOf(ctx, random, `SELECT intent_id FROM outbox.queue WHERE NOT lookup AND NOT maybe_applied AND provider = $1 LIMIT 20`, provider)
		if err != nil {
			return err
		}
		return a.operator.does("intents", "cancel", intent)
	})
}

var providers = []string{"keyed", "set", "once", "asked", "shop", "refunds"}

// pause pauses a provider while meanwhile runs.
func (a *arena) pause(random *rand.Rand, meanwhile func(provider string) error) error {
	provider := providers[random.IntN(len(providers))]
	if err := a.operator.does("providers", "pause", provider); err != nil {
		return err
	}
	defer a.operator.insists("providers", "resume", provider)
	return meanwhile(provider)
}

func runCancelled(_ context.Context, a *arena, random *rand.Rand) error {
	return a.operator.does("runs", "cancel", a.agents.recentRun(random))
}

func runTakenBack(_ context.Context, a *arena, random *rand.Rand) error {
	return a.operator.does("runs", "cancel", a.agents.recentRun(random), "--compensate")
}

func intentRetried(ctx context.Context, a *arena, random *rand.Rand) error {
	intent, err := a.oneOf(ctx, random, `SELECT intent_id FROM outbox.status WHERE status = 'unknown' AND finished_at IS NOT NULL ORDER BY intent_id DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("intents", "retry", intent, "--may-duplicate", "--config", a.Config)
}

func sagaRetried(ctx context.Context, a *arena, random *rand.Rand) error {
	run, err := a.oneOf(ctx, random, `SELECT agent_run_id FROM outbox.saga WHERE state = 'compensation_failed' ORDER BY begun_at DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("sagas", "retry", run)
}

func incidentAcknowledged(ctx context.Context, a *arena, random *rand.Rand) error {
	incident, err := a.oneOf(ctx, random, `SELECT id FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL ORDER BY id DESC LIMIT 20`)
	if err != nil {
		return err
	}
	return a.operator.does("incidents", "ack", incident)
}

// mine is a failpoint that acts at one hit, at random up to within, or at each hit.
type mine struct {
	point  failpoint.Point
	action string
	within int // 0 for each hit
}

// Points that are hit many times a second act later than points that are hit rarely.
var minefield = []mine{
	{failpoint.ClaimCommitted, "kill", 10},
	{failpoint.ClaimCommitted, "stop", 10},
	{failpoint.BeforeSend, "kill", 10},
	{failpoint.BeforeSend, "hold", 10},
	{failpoint.AfterReply, "kill", 10},
	{failpoint.AfterReply, "stop", 10},
	{failpoint.SettleCommitted, "kill", 10},
	{failpoint.SettleCommitted, "hold", 10},
	{failpoint.BatchReply, "fail", 20},
	{failpoint.BatchReply, "fail", 20},
	{failpoint.Heartbeat, "fail", 0},
	{failpoint.ClaimsLocked, "kill", 2},
	{failpoint.ClaimsRead, "kill", 2},
	{failpoint.SagaLocked, "kill", 5},
	{failpoint.SagaLocked, "stop", 5},
	{failpoint.UndoWritten, "kill", 3},
	{failpoint.PageSent, "kill", 3},
}

// mines gives failpoints to the daemons that start, until it is swept.
type mines struct {
	seed      uint64
	chronicle *chronicle
	swept     atomic.Bool

	mu    sync.Mutex
	lives map[string]uint64 // number of daemons of each replica so far
}

func newMines(seed uint64, chronicle *chronicle) *mines {
	return &mines{seed: seed, chronicle: chronicle, lives: map[string]uint64{}}
}

// next returns the failpoint of a replica's next daemon. Two thirds of the daemons get one.
func (m *mines) next(replica string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lives[replica]++
	random := rand.New(rand.NewPCG(m.seed, hashed(replica)+m.lives[replica]))
	if m.swept.Load() || random.IntN(3) == 0 {
		return ""
	}
	mine := minefield[random.IntN(len(minefield))]
	if mine.within == 0 {
		return fmt.Sprintf("%s=%s@*", mine.point, mine.action)
	}
	return fmt.Sprintf("%s=%s@%d", mine.point, mine.action, 1+random.IntN(mine.within))
}

// wentOff counts a failpoint that acted. If the failpoint stopped the daemon or holds a row, wentOff lets it continue
// after the suspension.
func (m *mines) wentOff(daemon *program.Daemon, line string) {
	m.chronicle.note(failpoints, strings.TrimPrefix(line, "failpoint "), nil)
	switch {
	case strings.HasSuffix(line, " stop"):
		time.AfterFunc(suspension, func() { _ = daemon.Send(syscall.SIGCONT) })
	case strings.HasSuffix(line, " hold"):
		time.AfterFunc(suspension, func() { _ = daemon.Send(syscall.SIGUSR1) })
	}
}

// fault is one kind of fault. inject injects it, undoes it, and returns. It returns an error if there was nothing to
// break.
type fault struct {
	name   string
	cards  int  // number of its cards in the deck
	lucky  bool // it may find nothing to break in a whole run
	inject func(ctx context.Context, a *arena, random *rand.Rand) error
}

// hand is a source of faults. It injects its whole deck before it shuffles again, so that every kind comes up.
type hand struct {
	name   string
	deck   []fault
	before time.Duration // the longest pause before a fault
}

// play injects faults until ctx ends. The random choices for one card do not depend on how long the other cards took.
func (h hand) play(ctx context.Context, a *arena) {
	for round := uint64(0); ; round++ {
		for number, card := range h.shuffled(a.seed, round) {
			random := rand.New(rand.NewPCG(a.seed+hashed(h.name), round<<16+uint64(number)))
			linger(ctx, time.Duration(random.Float64()*float64(h.before)))
			if ctx.Err() != nil {
				return
			}
			a.chronicle.note(card.name, "", card.inject(ctx, a, random))
		}
	}
}

func (h hand) shuffled(seed, round uint64) []fault {
	var cards []fault
	for _, fault := range h.deck {
		for range fault.cards {
			cards = append(cards, fault)
		}
	}
	rand.New(rand.NewPCG(seed^hashed(h.name), round)).Shuffle(len(cards), func(i, j int) { cards[i], cards[j] = cards[j], cards[i] })
	return cards
}

func hashed(text string) uint64 {
	hash := fnv.New64a()
	hash.Write([]byte(text))
	return hash.Sum64()
}

// between returns a random duration.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Float64()*float64(most-least))
}
