// Package drainertest gives tests a real Postgres: a migrated database of
// their own, on one server for each test binary.
//
// Tests of what speaks to a broker get a RabbitMQ, one for each test binary.
//
// The server is the one of TEST_DATABASE_URL if set, else a container of
// TEST_POSTGRES_IMAGE where Docker can supply it, else the Postgres installed
// on the machine.
package drainertest

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// Main runs a package's tests and stops the servers that a test started. A
// package whose tests call Database or RabbitMQ has
//
//	func TestMain(m *testing.M) { drainertest.Main(m) }
func Main(m *testing.M) {
	shared.expected = true
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		stopAll()
		os.Exit(1)
	}()
	code := m.Run()
	stopAll()
	os.Exit(code)
}

func stopAll() {
	sharedRabbitMQ.stop()
	shared.stop()
	endings.run()
}

// AtEnd has [Main] call f once the last test is over: for what all tests of a
// binary share.
func AtEnd(f func()) { endings.add(f) }

var endings endingList

type endingList struct {
	mu  sync.Mutex
	all []func()
}

func (l *endingList) add(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, f)
}

func (l *endingList) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.all {
		f()
	}
	l.all = nil
}

// shared is the server of this test binary.
var shared sharedServer

type sharedServer struct {
	expected bool // set by Main before any test runs

	mu      sync.Mutex
	started bool
	server  server
	err     error
}

func (s *sharedServer) start() (server, error) {
	if !s.expected {
		return server{}, errors.New("add `func TestMain(m *testing.M) { drainertest.Main(m) }` to the package, so that its Postgres is stopped")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.server, s.err = startServer()
	}
	return s.server, s.err
}

func (s *sharedServer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.err != nil {
		return
	}
	s.started = false
	if err := s.server.close(); err != nil {
		fmt.Fprintln(os.Stderr, "drainertest: stopping Postgres:", err)
	}
}
