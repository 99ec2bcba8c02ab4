// Package demo plays the whole story on one machine: agents that crash, a
// provider that fails in every known way and drainers of which one is killed.
// Some agents book trips that they cannot pay; those are taken back, but for one
// that pages. Then it compares what was committed with what the provider really
// did.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// limit is how long the story may take once the stage stands. What is not
	// settled by then fails the audit.
	limit = 50 * time.Second
	// stopTimeout is what is left for ending processes after an interrupt.
	stopTimeout = 5 * time.Second
)

// ErrInterrupted says that a demo was ended before its audit.
var ErrInterrupted = errors.New("interrupted before the audit; what was started has ended")

// Options say what to play and where.
type Options struct {
	// DatabaseURL names a server on which a database of its own is created, and
	// dropped at the end. Empty starts a throwaway server.
	DatabaseURL string
	// Drainer is the path of the drainer program.
	Drainer string
	// Intents is how many the agents commit beside those of the trips; at least 1.
	Intents int
	// Seed chooses every fault and every crash.
	Seed uint64
	// Screen shows what happens; nil shows nothing.
	Screen *Screen
	// Logs receives the end of the drainers' logs if the demo fails; nil drops it.
	Logs io.Writer
}

// Run plays the demo and audits it. A report that has not Passed is no error.
// Whatever was started has ended when Run returns, also with ErrInterrupted,
// which follows if ctx ends early.
func Run(ctx context.Context, options Options) (report Report, err error) {
	started := time.Now()
	if options.Screen == nil {
		options.Screen = NewScreen(io.Discard, false)
	}
	defer options.Screen.Close()
	stage, err := build(ctx, options)
	defer func() {
		switch {
		case ctx.Err() != nil:
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
	return report, nil
}

// play returns when the story is over or time is up.
func (s *stage) play(ctx context.Context, agents *agents) error {
	timely, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.fleet.watch(timely, func(ctx context.Context) error { return s.tell(ctx, agents) })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		s.Screen.Say(fmt.Sprintf("Time is up after %s", limit))
		err = nil
	}
	if err != nil {
		return err
	}
	return s.fleet.stop()
}

// tell is the story itself.
func (s *stage) tell(ctx context.Context, agents *agents) error {
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
	// The first leads River's jobs, and another would only follow it after 20 s.
	group.Go(func() error { return s.drainDespite(ctx, second) })
	return group.Wait()
}

// drainDespite returns when the story is over, though the victim dies half-way.
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

// wanted is how many intents the agents mean to commit.
func (s *stage) wanted() int { return s.Intents + tripCount*stepsOfTrip }

// killHolding kills a drainer at a moment when it holds intents: it is frozen
// before the look, so that it cannot settle them in between.
func (s *stage) killHolding(ctx context.Context, victim *drainer) (held int, err error) {
	err = s.await(ctx, func(Progress) bool {
		if err = victim.freeze(); err != nil {
			return true
		}
		if held, err = heldBy(ctx, s.database.pool, victim.worker); held > 0 || err != nil {
			return true
		}
		err = victim.thaw()
		return err != nil
	})
	return held, errors.Join(err, victim.kill())
}
