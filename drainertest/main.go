// Package drainertest gives tests a real Postgres: a migrated database of
// their own, on one server for each test binary.
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

// Main runs a package's tests and stops the server, if a test started one. A
// package whose tests call Database has
//
//	func TestMain(m *testing.M) { drainertest.Main(m) }
func Main(m *testing.M) {
	shared.expected = true
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		shared.stop()
		os.Exit(1)
	}()
	code := m.Run()
	shared.stop()
	os.Exit(code)
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
