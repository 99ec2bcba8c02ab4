// Package protocoltest checks messages against the published schema, and directs adapters in other processes in
// tests.
package protocoltest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Schema is docs/adapter-protocol.schema.json.
type Schema struct {
	messages map[string]*jsonschema.Schema
}

// Published reads the schema.
func Published(t testing.TB) Schema {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(here), "../../../../docs/adapter-protocol.schema.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("protocol.json", document); err != nil {
		t.Fatal(err)
	}
	schema := Schema{messages: map[string]*jsonschema.Schema{}}
	for _, message := range []string{"hello", "request", "result"} {
		compiled, err := compiler.Compile("protocol.json#/$defs/" + message)
		if err != nil {
			t.Fatal(err)
		}
		schema.messages[message] = compiled
	}
	return schema
}

// Check fails the test if the text is not a valid message of this kind.
func (s Schema) Check(t testing.TB, message string, text []byte) {
	t.Helper()
	if err := s.Validate(message, text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

// Validate returns why the text is not a valid message of this kind, or nil.
func (s Schema) Validate(message string, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return s.messages[message].Validate(value)
}

// Stage directs an adapter in another process during a test. The process passes every request to the stage and obeys
// its directions.
type Stage struct {
	t    *testing.T
	path string

	mu        sync.Mutex
	listener  net.Listener // nil while the process must be unreachable
	players   []net.Conn
	situation dispatchtest.Situation
	received  []dispatchtest.Message
}

// Direction says how a process must handle a request. The zero Direction leaves the request unanswered.
type Direction struct {
	Say string `json:"say"`
	Die bool   `json:"die"`
}

// NewStage opens a stage that ends with the test.
func NewStage(t *testing.T) *Stage {
	t.Helper()
	directory, err := os.MkdirTemp("", "stage") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &Stage{t: t, path: filepath.Join(directory, "s"), situation: dispatchtest.Answering}
	s.open()
	t.Cleanup(func() {
		s.close()
		os.RemoveAll(directory)
	})
	return s
}

// Path is the address for [Play] in the other process.
func (s *Stage) Path() string { return s.path }

// Enter changes the situation. In the situation Unreachable, every process ends, and none can start.
func (s *Stage) Enter(situation dispatchtest.Situation) {
	if situation == dispatchtest.Unreachable {
		s.close()
	} else {
		s.open()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.situation = situation
}

// Received returns every request so far.
func (s *Stage) Received() []dispatchtest.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

func (s *Stage) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return
	}
	listener, err := net.Listen("unix", s.path)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.listener = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.direct(conn)
		}
	}()
}

func (s *Stage) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return
	}
	_ = s.listener.Close()
	s.listener = nil
	for _, player := range s.players {
		_ = player.Close()
	}
	s.players = nil
}

func (s *Stage) direct(conn net.Conn) {
	s.mu.Lock()
	s.players = append(s.players, conn)
	s.mu.Unlock()
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			return
		}
		if err := json.NewEncoder(conn).Encode(s.direction(line)); err != nil {
			return
		}
	}
}

func (s *Stage) direction(line []byte) Direction {
	s.mu.Lock()
	defer s.mu.Unlock()
	var message struct{ ID string }
	if err := json.Unmarshal(line, &message); err != nil {
		s.t.Errorf("a request is no JSON: %v", err)
		return Direction{Die: true}
	}
	s.received = append(s.received, arrived(line))
	say := func(outcome string) Direction {
		return Direction{Say: fmt.Sprintf(`{"id":%q,"outcome":%q,"provider_ref":"ref-1","response":{"done":true}}`, message.ID, outcome)}
	}
	switch s.situation {
	case dispatchtest.Throttling:
		return say("throttled")
	case dispatchtest.Rejecting:
		return say("rejected")
	case dispatchtest.Busy:
		return say("in_flight")
	case dispatchtest.Severing:
		return Direction{Die: true}
	case dispatchtest.Babbling:
		return Direction{Say: "220 mail.example ESMTP"}
	case dispatchtest.Silent:
		return Direction{}
	}
	return say("completed")
}

// arrived removes the fields that differ on every attempt.
func arrived(line []byte) dispatchtest.Message {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(line, &fields) // direction has parsed it already
	for _, changing := range []string{"id", "attempt", "deadline_ms"} {
		delete(fields, changing)
	}
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(fields)
	var key string
	_ = json.Unmarshal(fields["idempotency_key"], &key)
	return dispatchtest.Message{Key: key, Body: body.Bytes()}
}

// Player is the connection of the other process to a stage.
type Player struct {
	mu     sync.Mutex
	conn   net.Conn
	reader *bufio.Reader
}

// Play connects to the stage at the path. The process ends when the stage ends.
func Play(path string) *Player {
	conn, err := net.Dial("unix", path)
	if err != nil {
		os.Exit(1)
	}
	lifeline, err := net.Dial("unix", path)
	if err != nil {
		os.Exit(1)
	}
	go func() {
		_, _ = lifeline.Read(make([]byte, 1))
		os.Exit(1)
	}()
	return &Player{conn: conn, reader: bufio.NewReader(conn)}
}

// Ask sends a request to the stage, as one line, and returns the direction for it.
func (p *Player) Ask(line []byte) Direction {
	p.mu.Lock()
	defer p.mu.Unlock()
	var direction Direction
	if _, err := p.conn.Write(append(bytes.TrimRight(line, "\n"), '\n')); err != nil {
		os.Exit(1)
	}
	answer, err := p.reader.ReadBytes('\n')
	if err != nil || json.Unmarshal(answer, &direction) != nil {
		os.Exit(1)
	}
	return direction
}
