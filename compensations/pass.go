package compensations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/compensations/jobs"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/failpoint"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const (
	// sweepInterval bounds how long a due saga waits that another process has marked.
	sweepInterval = 500 * time.Millisecond
	// lease is how long a saga waits after its process died in a pass. A pass gives up
	// after three quarters of the lease.
	lease = 12 * time.Second
	// batch is how many sagas a pass takes at most, and portion how many steps a plan has at most.
	batch, portion = 500, 1000
	// maxBytes bounds the payloads and responses that a pass reads at once, and the undo
	// payloads that it makes of them. A single step may be larger.
	maxBytes = 4 << 20
	// maxReady bounds the bytes of the payloads that a pass makes in advance for later undos. readyFor is how
	// long a decision in advance is valid: an undo may wait, and the configuration may change.
	maxReady, readyFor = 16 << 10, time.Minute
	// patience is how long a pass makes payloads before it writes its decisions down. An evaluation may take
	// seconds, and a pass whose time is over before it writes has moved nothing.
	patience    = lease / 12
	connections = 2
	// lookInterval is how often River has one process move sagas, and looks is how many sagas it moves at most.
	// This job shows that passes are made, and moves sagas even if the sweeps of other processes hang.
	lookInterval, looks = 10 * time.Second, 20
	// unknownDelay is how long a saga waits for a process whose configuration has its tool.
	unknownDelay = 2 * time.Second
)

// Saga undoes the completed steps of runs, one step at a time.
type Saga struct {
	pool     *pgxpool.Pool
	tools    atomic.Pointer[tools] // the current configuration; a pass uses the one that it began with
	observer *observer
	log      *slog.Logger
	marked   chan struct{}
	apart    sync.RWMutex // write-locked for a saga that an earlier pass left taken: it could kill the process
}

// tools are policies with their compiled mappings.
type tools struct {
	policies    Policies
	mappings    map[string]*Mapping // by the expression
	withoutUndo []string
	ofPayload   []string // tools whose undo's payload is made of the step's payload
	ofResponse  []string // tools whose undo's payload is made of the step's response
}

// OpenPool returns a pool of as many connections as passes need. It connects lazily.
func OpenPool(ctx context.Context, database *pgpool.Database) (*pgxpool.Pool, error) {
	return pgpool.Open(ctx, database, connections)
}

// New returns a Saga that does nothing before [Saga.Run]. The caller closes the pool. New fails if the payload
// expression of a reversal does not compile.
func New(pool *pgxpool.Pool, policies Policies, log *slog.Logger, registerer prometheus.Registerer) (*Saga, error) {
	s := &Saga{pool: pool, log: log, marked: make(chan struct{}, 1)}
	use, err := s.Prepare(policies)
	if err != nil {
		return nil, err
	}
	use()
	s.observer = newObserver(log, registerer)
	return s, nil
}

// Prepare compiles other policies, and fails like New. They take effect once use is called.
func (s *Saga) Prepare(policies Policies) (use func(), err error) {
	mappings := map[string]*Mapping{}
	for provider, operations := range policies {
		for operation, policy := range operations {
			if mappings[policy.Reversal.Payload], err = CompileMapping(policy.Reversal.Payload); err != nil {
				return nil, fmt.Errorf("%s/%s: %w", provider, operation, err)
			}
		}
	}
	reading := func(field string) []string {
		return policies.names(func(p dispatch.Policy) bool { return mappings[p.Reversal.Payload].reads(field) })
	}
	prepared := &tools{policies, mappings, policies.names(needsNoUndo), reading("payload"), reading("response")}
	return func() { s.tools.Store(prepared) }, nil
}

// Settled reports to s what a settlement did to sagas: whether it marked any, and how many undos it enqueued
// and how many sagas it ended by decisions that a pass made in advance. It never blocks, since lanes call it.
func (s *Saga) Settled(marked bool, undos, compensated int) {
	s.observer.outcomes.WithLabelValues(outcomes[Undo]).Add(float64(undos))
	s.observer.outcomes.WithLabelValues(outcomes[Finish]).Add(float64(compensated))
	if compensated > 0 { // one line for all, since many may end at once
		s.log.Info("sagas", "outcome", outcomes[Finish], "runs", compensated)
	}
	if !marked {
		return
	}
	select {
	case s.marked <- struct{}{}:
	default:
	}
}

// Run moves sagas until ctx ends. Each process does so for itself, in addition to River's job: if a process is
// killed, the others go on without a delay.
func (s *Saga) Run(ctx context.Context) error {
	var passes sync.WaitGroup
	for range connections {
		passes.Go(func() { s.sweep(ctx) })
	}
	passes.Wait()
	return nil
}

// sweep makes passes until ctx ends. Several sweeps run in a process: while one waits for the database, another
// makes payloads. No two of them take the same saga.
func (s *Saga) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		err := s.Advance(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot move sagas now; the next sweep will", "error", err)
		}
		marked := s.marked
		if err != nil {
			marked = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-marked:
		case <-ticker.C:
		}
	}
}

var _ jobs.Part = (*Saga)(nil)

// lookArgs is the job by which River has one process move sagas.
type lookArgs struct{}

func (lookArgs) Kind() string { return jobs.KindSagaLook }

// InsertOpts turns retries off, since the next look comes soon.
func (lookArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Kinds implements [jobs.Part].
func (s *Saga) Kinds() []string { return []string{lookArgs{}.Kind()} }

// Register adds the worker that moves sagas.
func (s *Saga) Register(workers *river.Workers) { river.AddWorker(workers, &lookWorker{saga: s}) }

// Periodic returns the look. It starts when the process begins to lead, and then each lookInterval.
func (s *Saga) Periodic() []*river.PeriodicJob {
	return []*river.PeriodicJob{river.NewPeriodicJob(
		river.PeriodicInterval(lookInterval),
		func() (river.JobArgs, *river.InsertOpts) { return lookArgs{}, nil },
		&river.PeriodicJobOpts{RunOnStart: true},
	)}
}

type lookWorker struct {
	river.WorkerDefaults[lookArgs]
	saga *Saga
}

// errLook replaces the cause of a failure in River's table, since the cause's text may repeat a payload.
var errLook = errors.New("sagas could not be looked at; see the log of a drainer")

// Work moves a few sagas, each by a pass of its own. If the pass of a saga fails, the job does not: other passes are
// made, and the saga's failure is logged and shows by the saga's age. Work keeps the sweeps of its process waiting no
// longer than a sweep would. It fails at once while a sweep holds apart.
func (w *lookWorker) Work(ctx context.Context, _ *river.Job[lookArgs]) error {
	ctx, cancel := context.WithTimeout(ctx, lease*3/4)
	defer cancel()
	if !w.saga.apart.TryRLock() {
		return errLook
	}
	defer w.saga.apart.RUnlock()
	var failed error // the last error; each look logs at most one line
	defer func() {
		if failed != nil {
			w.saga.log.Warn("cannot move sagas now; the next look will", "error", failed)
		}
	}()
	for range looks {
		found, err := w.saga.pass(ctx, 1, nil, false)
		if err != nil {
			failed = err
		}
		switch {
		case ctx.Err() != nil, found == 0 && err != nil:
			return errLook
		case found == 0:
			return nil
		}
	}
	return nil
}

// Advance moves all due sagas until none is due any more. If runs are given, it moves only the sagas of these
// runs, marked or not. It may be called at any time, also by several processes at once.
func (s *Saga) Advance(ctx context.Context, runs ...string) error {
	if len(runs) > 0 {
		untaken := make([]taken, len(runs))
		for i, run := range runs {
			untaken[i].run = run
		}
		if err := s.release(ctx, untaken); err != nil {
			return err
		}
	}
	looked := time.Now()
	for {
		s.apart.RLock()
		fresh, err := s.pass(ctx, batch, runs, false)
		s.apart.RUnlock()
		if err != nil {
			return err
		}
		if fresh > 0 && time.Since(looked) < sweepInterval {
			continue
		}
		// A saga that an earlier pass left taken may have killed its process, so it gets a pass of its own.
		s.apart.Lock()
		again, err := s.pass(ctx, 1, runs, true)
		s.apart.Unlock()
		if err != nil || fresh+again == 0 {
			return err
		}
		looked = time.Now()
	}
}

// pass takes at most limit sagas and moves each of them one step. It takes sagas that an earlier pass left taken if
// again is true, and only others if it is false. It returns how many it took.
func (s *Saga) pass(ctx context.Context, limit int, runs []string, again bool) (int, error) {
	sagas, err := s.take(ctx, limit, runs, again)
	if err != nil || len(sagas) == 0 {
		return 0, err
	}
	count, tools, deadline := len(sagas), s.tools.Load(), time.Now().Add(lease*3/4)
	failpoint.SagaLocked.Hit()
	sagas = slices.DeleteFunc(sagas, func(t taken) bool {
		if t.pass == 0 {
			s.observer.stalled(t.intent)
		}
		return t.pass == 0
	})
	var failures []error
	for _, part := range parts(sagas) {
		failures = append(failures, s.isolate(ctx, part, func(ctx context.Context, part []taken) error {
			return s.advance(ctx, part, tools, deadline)
		}))
	}
	return count, errors.Join(failures...)
}

// parts divides sagas into parts of at most portion steps to be planned. A single saga may have more.
func parts(sagas []taken) (parts [][]taken) {
	steps := 0
	for i, t := range sagas {
		if steps += t.steps; i == 0 || steps > portion {
			parts, steps = append(parts, nil), t.steps
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], t)
	}
	return parts
}

// isolate advances sagas together. If that fails, it tries each saga alone, since a single one may have failed all.
// It releases a saga that could not be moved, unless the saga's own data is the cause.
func (s *Saga) isolate(ctx context.Context, sagas []taken, advance func(context.Context, []taken) error) error {
	err := advance(ctx, sagas)
	switch {
	case err == nil:
		return nil
	case len(sagas) > 1 && ctx.Err() == nil && s.pool.Ping(ctx) == nil:
		var failures []error
		for _, t := range sagas {
			failures = append(failures, s.isolate(ctx, []taken{t}, advance))
		}
		return errors.Join(failures...)
	case len(sagas) == 1 && isOfTheData(err):
		return err // the saga stays taken: after three such passes a human is paged
	}
	giveBack, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return errors.Join(err, s.release(giveBack, sagas))
}

// isOfTheData reports whether the next pass would meet the same error. These are the errors of class 22 (data
// exception), 23 (integrity constraint violation) and 54 (program limit exceeded).
func isOfTheData(err error) bool {
	var refusal *pgconn.PgError
	return errors.As(err, &refusal) && slices.ContainsFunc([]string{"22", "23", "54"}, func(class string) bool { return strings.HasPrefix(refusal.Code, class) })
}

// advance does the second and the third part of a pass, look and move, for sagas that are taken.
func (s *Saga) advance(ctx context.Context, sagas []taken, tools *tools, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	left := map[string]taken{}
	var unplanned []taken
	for _, t := range sagas {
		if left[t.run] = t; !t.planned {
			unplanned = append(unplanned, t)
			delete(left, t.run)
		}
	}
	var stale []taken // sagas that have changed since they were taken
	if len(unplanned) > 0 {
		plans, err := s.plan(ctx, unplanned, tools.withoutUndo)
		if err != nil {
			return err
		}
		for _, t := range unplanned {
			plan, known := plans[t.run]
			if !known {
				stale = append(stale, t)
			} else if t.plan = plan; plan != nil {
				left[t.run] = t
			}
		}
	}
	for len(left) > 0 {
		places, err := s.next(ctx, slices.Collect(maps.Values(left)), tools)
		if err != nil {
			return err
		}
		moves, err := s.decide(ctx, places, tools)
		if err != nil {
			return err
		}
		moved, err := s.move(ctx, moves)
		if err != nil {
			return err
		}
		for i := range moves {
			if moved[moves[i].run] {
				s.observer.record(moves[i].decided)
				delete(left, moves[i].run)
			}
		}
		if len(moved) == 0 {
			stale = slices.AppendSeq(stale, maps.Values(left))
			clear(left)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return s.release(ctx, stale)
}

// decide returns the moves for the first of the places, and makes the undos' payloads. It stops once these are more
// than maxBytes, or have taken longer than patience. If a payload cannot be made, the saga fails as if its undo had
// been refused.
func (s *Saga) decide(ctx context.Context, places []place, tools *tools) (moves []move, err error) {
	never, now, later := (*float64)(nil), new(float64), unknownDelay.Seconds()
	bytes, began := 0, time.Now()
	for _, p := range places {
		m := move{place: p, state: "begun", delay: now}
		switch {
		case p.step.IntentID != 0:
			m.decided = Decide(p.step, tools.policies)
		case p.at > p.planned && p.planned < portion && p.forgotten:
			m.decided = Decision{Action: Fail, why: stepsForgotten}
		case p.at > p.planned && p.planned < portion:
			m.decided.Action = Finish
		default:
			m.decided.Action, m.replan = Skip, p.at > p.planned
		}
		if m.decided.Action == Undo {
			payload, err := tools.payload(ctx, p.step)
			var unmappable MappingError
			if errors.As(err, &unmappable) {
				m.decided = Decision{Action: Fail, Step: p.step, why: failure(unmappable)}
			} else if err != nil {
				return nil, err
			}
			m.decided.payload = payload
		}
		switch m.decided.Action {
		case Wait:
			if m.delay = never; m.decided.why == unknownTool {
				m.delay = &later
			}
		case Undo:
			m.delay = never // the undo's settlement marks the saga, or carries out the decision in advance
			if m.ready, err = ahead(ctx, p, tools, began.Add(patience)); err != nil {
				return nil, err
			}
		case Skip:
			if p.step.IntentID != 0 {
				m.at++
			}
		case Fail:
			m.state = "compensation_failed"
		case Finish:
			m.state = "compensated"
		}
		moves = append(moves, m)
		if bytes += len(m.decided.payload); bytes > maxBytes || time.Since(began) > patience {
			break
		}
	}
	return moves, nil
}

// readyStep is a pass's decision in advance on a later place of the plan: an undo, or, if Tool is empty, that the
// saga ends there as compensated. Until is when the decision expires, in seconds since 1970 by the database's clock.
type readyStep struct {
	Step    string          `json:"step,omitempty"` // the undo's step_id
	Tool    string          `json:"tool,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Until   float64         `json:"until"`
}

// ahead decides the places that follow an undo. It returns the decisions as a JSON object by the number of the place,
// or nil if it decides none. It stops at the first place that needs a pass of its own, at maxReady bytes, or at end.
func ahead(ctx context.Context, p place, tools *tools, end time.Time) (*string, error) {
	ready, bytes, latest := map[string]readyStep{}, 0, p.now+readyFor.Seconds()
	at, isLast := p.at, p.isLast
	for _, following := range p.following {
		if isLast = false; following.at != at+1 || !following.isRead || time.Now().After(end) {
			break
		}
		decided := Decide(following.step, tools.policies)
		if decided.Action != Undo {
			break
		}
		payload, err := tools.payload(ctx, following.step)
		var unmappable MappingError
		if errors.As(err, &unmappable) {
			break
		} else if err != nil {
			return nil, err
		}
		if bytes += len(payload); bytes > maxReady {
			break
		}
		until := latest
		if policy, _ := tools.policies.of(following.step); policy.Reversal.Window > 0 {
			until = min(until, following.now+(policy.Reversal.Window-following.step.Age).Seconds())
		}
		at, isLast = following.at, following.isLast
		ready[strconv.Itoa(at)] = readyStep{following.step.undoStep(), decided.undo, payload, until}
	}
	if isLast && at == p.planned && p.planned < portion && !p.forgotten {
		ready[strconv.Itoa(at+1)] = readyStep{Until: latest}
	}
	if len(ready) == 0 {
		return nil, nil
	}
	encoded, err := json.Marshal(ready)
	if err != nil {
		return nil, fmt.Errorf("make the next undos ready: %w", err)
	}
	text := string(encoded)
	return &text, nil
}

// payload returns the payload of a step's undo. It is nil if the undo sends the step's own payload, which the
// database copies.
func (t *tools) payload(ctx context.Context, step Step) (json.RawMessage, error) {
	policy, _ := t.policies.of(step)
	if policy.Reversal.Payload == "" {
		return nil, nil
	}
	return t.mappings[policy.Reversal.Payload].Payload(ctx, step.Effect)
}

// observer counts and logs the outcomes of sagas. Only the process that took an action counts it, so that the
// fleet's counters add up.
type observer struct {
	outcomes *prometheus.CounterVec
	log      *slog.Logger
	unknown  rate.Sometimes // limits a warning that would come again after each unknownDelay
}

// outcomes names the actions that are counted and logged.
var outcomes = map[Action]string{Undo: "undo_enqueued", Fail: "compensation_failed", Finish: "compensated"}

func newObserver(log *slog.Logger, registerer prometheus.Registerer) *observer {
	o := &observer{log: log, unknown: rate.Sometimes{First: 1, Interval: time.Minute}, outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "drainer", Name: "compensations_total", Help: "Sagas that ended, and undos that they enqueued.",
	}, []string{"outcome"})}
	for _, outcome := range append(slices.Collect(maps.Values(outcomes)), "stalled") {
		o.outcomes.WithLabelValues(outcome)
	}
	registerer.MustRegister(o.outcomes)
	return o
}

func (o *observer) record(decided Decision) {
	if decided.why == unknownTool {
		o.unknown.Do(func() {
			o.log.Warn("a saga waits for a process that knows a tool which is not configured here", "intent_id", decided.Step.IntentID)
		})
	}
	outcome, notable := outcomes[decided.Action]
	if !notable {
		return
	}
	o.outcomes.WithLabelValues(outcome).Inc()
	level := slog.LevelInfo
	if decided.Action == Fail {
		level = slog.LevelError
	}
	o.log.Log(context.Background(), level, "saga", "outcome", outcome, "intent_id", decided.Step.IntentID, "error", string(decided.why))
}

func (o *observer) stalled(intent int64) {
	o.outcomes.WithLabelValues("stalled").Inc()
	o.log.Error("a saga is left to a human: three passes did not end", "intent_id", intent)
}
