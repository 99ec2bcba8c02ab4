//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Hit acts if the point is armed. A point that is armed to fail does nothing here.
func (p Point) Hit() { _ = p.Fail() }

// Fail acts if the point is armed, and returns an error if it is armed to fail.
func (p Point) Fail() error {
	action, now := armed().hit(p)
	if !now {
		return nil
	}
	fmt.Fprintf(os.Stderr, "failpoint %s %s\n", p, action)
	switch action {
	case kill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal may take a moment, and this goroutine must not continue meanwhile
	case stop:
		continued := once(syscall.SIGCONT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-continued // a process continues for a moment after SIGSTOP
	case hold:
		<-released
	case hang:
		select {}
	case blow:
		panic("failpoint " + p)
	case fail:
		return fmt.Errorf("failpoint %s", p)
	}
	return nil
}

var armed = sync.OnceValue(func() *armory {
	armory, err := parse(os.Getenv("DRAINER_FAILPOINTS"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "DRAINER_FAILPOINTS:", err)
		os.Exit(2)
	}
	return armory
})

// released is closed after the first SIGUSR1. It listens from the start of the program, because a signal without a
// listener is lost.
var released = once(syscall.SIGUSR1)

// once returns a channel that is closed when the first of the signals arrives.
func once(signals ...os.Signal) <-chan struct{} {
	came, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(came, signals...)
	go func() {
		<-came
		close(done)
	}()
	return done
}

type action string

const (
	kill action = "kill"
	stop action = "stop"
	hold action = "hold"
	hang action = "hang"
	fail action = "fail"
	blow action = "panic"
)

const everyHit = 0

// arming says what a point does, and at which hit.
type arming struct {
	action action
	at     int // everyHit, or a count from 1
}

// armory holds the armed points, and how often each point was hit.
type armory struct {
	mu   sync.Mutex
	arms map[Point]arming
	hits map[Point]int
}

// hit counts a hit, and returns the action and whether it is due now.
func (a *armory) hit(p Point) (action, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	arm, armed := a.arms[p]
	if !armed {
		return "", false
	}
	a.hits[p]++
	return arm.action, arm.at == everyHit || arm.at == a.hits[p]
}

func parse(text string) (*armory, error) {
	a := &armory{arms: map[Point]arming{}, hits: map[Point]int{}}
	if text == "" {
		return a, nil
	}
	for _, part := range strings.Split(text, ",") {
		point, does, found := strings.Cut(part, "=")
		if !found {
			return nil, fmt.Errorf("%q is not point=action", part)
		}
		if !slices.Contains(Points, Point(point)) {
			return nil, fmt.Errorf("there is no point %q", point)
		}
		arm, err := parseArming(does)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", point, err)
		}
		a.arms[Point(point)] = arm
	}
	return a, nil
}

func parseArming(text string) (arming, error) {
	name, at, counted := strings.Cut(text, "@")
	arm := arming{action: action(name), at: 1}
	switch arm.action {
	case kill, stop, hold, hang, fail, blow:
	default:
		return arming{}, fmt.Errorf("no action %q; there are kill, stop, hold, hang, fail and panic", name)
	}
	if !counted {
		return arm, nil
	}
	if at == "*" {
		arm.at = everyHit
		return arm, nil
	}
	var err error
	if arm.at, err = strconv.Atoi(at); err != nil || arm.at < 1 {
		return arming{}, fmt.Errorf("@%s is neither @* nor a hit from 1", at)
	}
	return arm, nil
}
