//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"os/signal"
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
		select {} // the signal may take a moment, and nobody may go on in it
	case stop:
		continued := once(syscall.SIGCONT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-continued // a process that is to stop runs on for a moment
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

// released is closed once SIGUSR1 came. It listens from the program's start: a
// signal that nobody awaits is lost.
var released = once(syscall.SIGUSR1)

// once returns a channel that is closed when the first of the signals comes.
func once(signals ...os.Signal) <-chan struct{} {
	came, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(came, signals...)
	go func() {
		<-came
		close(done)
	}()
	return done
}
