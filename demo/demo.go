// Package demo plays the whole story on one machine: agents that crash, a provider that fails in every known way,
// and drainers of which one is killed. Some agents book trips that they cannot pay. These trips are rolled back,
// except for one that needs a human and pages. Then the demo compares the committed intents with the effects at
// the provider.
package demo

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// limit is how long the story may take once everything is started. Intents that are not settled by then fail
	// the audit.
	limit = 50 * time.Second
	// stopTimeout is the time for ending each process after an interrupt.
	stopTimeout = 5 * time.Second
)

// ErrInterrupted says that the demo was ended before its audit.
var ErrInterrupted = errors.New("interrupted before the audit; what was started has ended")

// Options configures a demo.
type Options struct {
	// DatabaseURL names a server on which the demo creates a database of its own, and drops it at the end. If
	// empty, the demo starts a throwaway server.
	DatabaseURL string
	// Drainer is the path of the drainer program.
	Drainer string
	// Intents is how many intents the agents commit besides those of the trips. It is at least 1.
	Intents int
	// Seed determines every fault and every crash.
	Seed uint64
	// Screen shows the progress. If nil, nothing is shown.
	Screen *Screen
	// Afterwards is called after the audit, before the database is dropped, while another drainer runs. The end of
	// its context is not an error. If nil, the demo ends after the audit.
	Afterwards func(ctx context.Context, report Report, databaseURL string) error
	// Logs receives the ends of the drainers' logs if the demo fails. If nil, they are dropped.
	Logs io.Writer
}

// Run plays the demo and audits it. A report that has not Passed is not an error. All that Run started has ended
// when it returns. If ctx ends early, Run returns ErrInterrupted.
func Run(ctx context.Context, options Options) (report Report, err error) {
	started := time.Now()
	if options.Screen == nil {
		options.Screen = NewScreen(io.Discard, false)
	}
	defer options.Screen.Close()
	stage, err := build(ctx, options)
	audited := false
	defer func() {
		switch {
		case ctx.Err() != nil && !audited:
			err = ErrInterrupted
		case !report.Passed:
			stage.fleet.printLogs(options.Logs)
		}
		err = errors.Join(err, stage.clear())
	}()
	if err != nil {
		return Report{}, err
	}
	agents := newAgents(stage.database.pool, options)
	if err := stage.play(ctx, agents); err != nil {
		return Report{}, err
	}
	options.Screen.Say("Auditing: every intent against the provider's ledger")
	facts, err := stage.collect(ctx)
	if err != nil {
		return Report{}, err
	}
	report = judge(facts)
	report.Seed = options.Seed
	report.Rollbacks = agents.rollbacks.Load()
	report.DurationSeconds = time.Since(started).Round(time.Millisecond).Seconds()
	if audited = true; options.Afterwards == nil {
		return report, nil
	}
	if _, err := stage.fleet.start(ctx, stage.database.pool); err != nil {
		return report, err
	}
	return report, options.Afterwards(ctx, report, stage.database.url)
}

// play returns when the story is over or the time limit has passed.
func (s *stage) play(ctx context.Context, agents *agents) error {
	timely, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.fleet.watch(timely, func(ctx context.Context) error { return s.perform(ctx, agents) })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s.Screen.Say(fmt.Sprintf("Time is up after %s", limit))
		err = nil
	}
	if err != nil {
		return err
	}
	return s.fleet.stop()
}

// perform starts the drainers and the agents, and kills a drainer half-way.
func (s *stage) perform(ctx context.Context, agents *agents) error {
	first, err := s.fleet.start(ctx, s.database.pool)
	if err != nil {
		return err
	}
	second, err := s.fleet.start(ctx, s.database.pool)
	if err != nil {
		return err
	}
	s.Screen.Say(fmt.Sprintf("Two drainers run, pids %d and %d", first.process.Pid(), second.process.Pid()))
	s.Screen.Say(fmt.Sprintf("Agents commit %d intents, and crash and retry as they do", s.wanted()))
	s.Screen.Say(fmt.Sprintf("%d of their runs book a trip in four steps, then pay; every second card is refused, so what was booked is cancelled", tripCount))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return agents.work(ctx) })
	group.Go(func() error { return agents.travel(ctx) })
	// The second is killed, because the first leads River's jobs, and another would become the leader only after
	// 20 s.
	group.Go(func() error { return s.drainDespite(ctx, second) })
	return group.Wait()
}

// drainDespite kills the victim half-way, and returns when the story is over.
func (s *stage) drainDespite(ctx context.Context, victim *drainer) error {
	if err := s.await(ctx, Progress.halfWay); err != nil {
		return err
	}
	held, err := s.killHolding(ctx, victim)
	if err != nil {
		return err
	}
	s.Screen.Say(fmt.Sprintf("Killed drainer %d with SIGKILL while it held %d intents", victim.process.Pid(), held))
	fresh, err := s.fleet.start(ctx, s.database.pool)
	if err != nil {
		return err
	}
	s.Screen.Say(fmt.Sprintf("A fresh drainer runs, pid %d; the dead one's lease ends within seconds", fresh.process.Pid()))
	return s.await(ctx, Progress.over)
}

// wanted returns how many intents the agents want to commit.
func (s *stage) wanted() int { return s.Intents + tripCount*stepsOfTrip }

// killHolding kills a drainer while it holds intents. The drainer is frozen before the check, so that it cannot
// settle them meanwhile. The check is frequent, because on a busy machine a drainer holds intents only for a small
// part of the time.
func (s *stage) killHolding(ctx context.Context, victim *drainer) (held int, err error) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		if err := victim.freeze(); err != nil {
			return 0, err
		}
		if held, err = heldBy(ctx, s.database.pool, victim.worker); held > 0 || err != nil {
			return held, errors.Join(err, victim.kill())
		}
		if err := victim.thaw(); err != nil {
			return 0, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// drainerConfig is the configuration of all drainers. They read addresses from their environment.
//
//go:embed drainer.yaml
var drainerConfig []byte

// stage holds all that a demo starts and must end.
type stage struct {
	Options
	dir      string
	database *database
	provider *provider
	pager    *pager
	fleet    *fleet
}

// build starts the demo. Even if it fails, it returns a stage for clear.
func build(ctx context.Context, options Options) (*stage, error) {
	s := &stage{Options: options, fleet: &fleet{program: options.Drainer}}
	var err error
	if s.dir, err = os.MkdirTemp("", "drainer-demo-"); err != nil {
		return s, err
	}
	if options.DatabaseURL == "" {
		s.Screen.Say("Starting a throwaway Postgres")
	} else {
		s.Screen.Say("Creating a database of its own on your server")
	}
	if s.database, err = openDatabase(ctx, options.DatabaseURL); err != nil {
		return s, err
	}
	if _, err := s.database.pool.Exec(ctx, agentState); err != nil {
		return s, fmt.Errorf("creating the agents' table: %w", err)
	}
	if s.provider, err = serveProvider(filepath.Join(s.dir, "ledger.jsonl"), options.Seed); err != nil {
		return s, err
	}
	s.Screen.Say("A provider runs that is slow, throttles, fails and hangs up, before and after it acted")
	if s.pager, err = servePager(func(summary string) { s.Screen.Say("A page: " + summary) }); err != nil {
		return s, err
	}
	s.fleet.logs, s.fleet.config = s.dir, filepath.Join(s.dir, "drainer.yaml")
	s.fleet.environment = []string{
		"DATABASE_URL=" + s.database.url, "DEMO_PROVIDER_URL=" + s.provider.url,
		"DEMO_PAGER_URL=" + s.pager.url, "DEMO_PAGER_SECRET=" + s.pager.secret,
	}
	return s, os.WriteFile(s.fleet.config, drainerConfig, 0o600)
}

// clear ends all that was started, in reverse order.
func (s *stage) clear() error {
	problems := []error{s.fleet.kill()}
	if s.pager != nil {
		problems = append(problems, s.pager.close())
	}
	if s.provider != nil {
		problems = append(problems, s.provider.close())
	}
	if s.database != nil {
		problems = append(problems, s.database.close())
	}
	if s.dir != "" {
		problems = append(problems, os.RemoveAll(s.dir))
	}
	return errors.Join(problems...)
}

const stepsPerRun = 5

// step is an agent's decision at one point of its run.
type step struct {
	tuple   dispatch.Tuple
	payload map[string]any
}

// stepNumber returns the n-th step of the demo. The same number always gives the same step.
func stepNumber(n int) step {
	s := step{tuple: dispatch.Tuple{
		AgentRunID: fmt.Sprintf("run-%05d", n/stepsPerRun),
		StepID:     fmt.Sprintf("step-%d", n%stepsPerRun+1),
	}}
	switch n % 3 {
	case 0:
		s.tuple.ToolName, s.tuple.BusinessScope = "payments/charge", fmt.Sprintf("invoice_%05d", n)
		s.payload = map[string]any{"amount": 1000 + n, "currency": "eur"}
	case 1:
		s.tuple.ToolName, s.tuple.BusinessScope = "mail/send", fmt.Sprintf("customer_%05d", n)
		s.payload = map[string]any{"to": fmt.Sprintf("customer-%05d@example.com", n), "template": "receipt"}
	default:
		s.tuple.ToolName, s.tuple.BusinessScope = "tickets/open", fmt.Sprintf("order_%05d", n)
		s.payload = map[string]any{"queue": "returns eu", "title": fmt.Sprintf("Order %d", n)}
	}
	return s
}

// write keeps the agent's own state and enqueues the intent, in one transaction.
func (s step) write(ctx context.Context, tx pgx.Tx) error {
	payload, err := json.Marshal(s.payload)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO agent_state VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		s.tuple.AgentRunID, s.tuple.StepID, s.tuple.ToolName); err != nil {
		return fmt.Errorf("keep the step: %w", err)
	}
	if _, err := tx.Exec(ctx, `SELECT outbox.enqueue($1, $2, $3, $4, $5)`,
		s.tuple.AgentRunID, s.tuple.StepID, s.tuple.ToolName, s.tuple.BusinessScope, payload); err != nil {
		return fmt.Errorf("enqueue: %w", err)
	}
	return nil
}

// The ends of an undone step, and of its run.
const (
	compensated        = "compensated"
	compensationFailed = "compensation_failed"
)

// saga returns the planned end of the trip's saga, or "" if the trip has none.
func (t trip) saga() string {
	switch {
	case t.card != expiredCard:
		return ""
	case slices.Contains(t.kinds, ferry):
		return compensationFailed
	}
	return compensated
}

// ending returns the planned end of a step. Bookings are undone from the newest to the first one after the ferry,
// which cannot be undone. All steps of the zero trip complete.
func (t trip) ending(step string) string {
	position := slices.IndexFunc(t.kinds, func(kind string) bool { return bookStep(kind) == step })
	switch stuck := slices.Index(t.kinds, ferry); {
	case t.saga() == "" || position >= 0 && position < stuck:
		return string(dispatch.StatusCompleted)
	case step == payStep:
		return string(dispatch.StatusFailed)
	case step == bookStep(ferry):
		return compensationFailed
	}
	return compensated
}

const progressPoll = 100 * time.Millisecond

// Progress is the progress of a demo. Numbers count the agents' intents, unless they say otherwise.
type Progress struct {
	Wanted     int // intents that the agents want to commit
	Enqueued   int
	Settled    int
	InProgress int
	Effects    int // in the provider's ledger
	Retries    int // attempts that will be repeated
	Recovered  int // intents that were reclaimed from dead workers
	Trips      Trips
}

// halfWay is true once half of the intents are settled, or half of the trips have ended: enough remain to be lost.
func (p Progress) halfWay() bool { return 2*p.Settled >= p.Wanted || 2*p.Trips.ended() >= tripCount }

// over is true when every intent is settled, every trip that cannot be paid is rolled back as far as possible, and
// a page was sent for the rest.
func (p Progress) over() bool {
	return p.Settled >= p.Wanted && p.Trips.ended() >= tripCount && p.Trips.Pages >= p.Trips.Stuck
}

// Trips counts trips by their progress.
type Trips struct {
	Paid      int
	GoingBack int
	Undone    int
	Stuck     int
	Pages     int // received until now
}

func (t Trips) ended() int { return t.Paid + t.Undone + t.Stuck }

// String returns one line for the screen.
func (t Trips) String() string {
	return fmt.Sprintf("trips: %d paid, %d rolling back, %d undone, %d stuck, %d paged", t.Paid, t.GoingBack, t.Undone, t.Stuck, t.Pages)
}

// await shows the progress until it satisfies the condition.
func (s *stage) await(ctx context.Context, enough func(Progress) bool) error {
	poll := time.NewTicker(progressPoll)
	defer poll.Stop()
	for {
		progress, err := readProgress(ctx, s.database.pool)
		if err != nil {
			return err
		}
		progress.Wanted = s.wanted()
		progress.Effects = s.provider.ledger.Audit().TotalEffects()
		progress.Trips.Pages = len(s.pager.received())
		s.Screen.Show(progress)
		if enough(progress) {
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const (
	barWidth  = 32
	lineEvery = time.Second // if the screen cannot be redrawn
)

// Screen shows the progress: on a terminal with a block of lines that is redrawn, elsewhere line by line.
type Screen struct {
	out      io.Writer
	terminal bool
	started  time.Time

	mu       sync.Mutex
	progress *Progress // the progress that the block shows; nil before the first
	drawn    int       // number of lines in the block
	shown    time.Time
}

// NewScreen writes to out.
func NewScreen(out io.Writer, terminal bool) *Screen {
	return &Screen{out: out, terminal: terminal, started: time.Now()}
}

// Say prints one event.
func (s *Screen) Say(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintf(s.out, "%5.1fs  %s\n", time.Since(s.started).Seconds(), event)
	s.draw()
}

// Show prints the progress.
func (s *Screen) Show(progress Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = &progress
	if s.terminal {
		s.erase()
		s.draw()
		return
	}
	if time.Since(s.shown) >= lineEvery {
		s.shown = time.Now()
		fmt.Fprintf(s.out, "%5.1fs  enqueued %d, settled %d of %d, in progress %d, effects %d, retries %d, recovered %d; %s\n",
			time.Since(s.started).Seconds(), progress.Enqueued, progress.Settled, progress.Wanted,
			progress.InProgress, progress.Effects, progress.Retries, progress.Recovered, progress.Trips)
	}
}

// Close removes the block and keeps the events.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.progress = nil
}

func (s *Screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

func (s *Screen) draw() {
	if !s.terminal || s.progress == nil {
		return
	}
	p := s.progress
	lines := []string{
		"",
		bar("enqueued", p.Enqueued, p.Wanted),
		bar("effects", p.Effects, p.Wanted),
		bar("settled", p.Settled, p.Wanted),
		fmt.Sprintf("  in progress %-5d retries %-6d recovered %d", p.InProgress, p.Retries, p.Recovered),
		"  " + p.Trips.String(),
	}
	fmt.Fprintln(s.out, strings.Join(lines, "\n"))
	s.drawn = len(lines)
}

func bar(name string, count, all int) string {
	full := min(barWidth, barWidth*count/max(1, all))
	return fmt.Sprintf("  %-9s %s%s %6d", name, strings.Repeat("█", full), strings.Repeat("░", barWidth-full), count)
}
