package dispatchtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"
)

// Entry is one line of a ledger: a request that came in, or an effect that
// happened.
type Entry struct {
	Kind   string          `json:"kind"` // "request" or "effect"
	At     time.Time       `json:"at"`
	Key    string          `json:"key"` // the idempotency key, "" without one
	Method string          `json:"method,omitempty"`
	Path   string          `json:"path,omitempty"`
	ID     string          `json:"id,omitempty"`      // of the effect
	Body   string          `json:"body,omitempty"`    // SHA-256 of the request body, in hex
	Fault  Fault           `json:"fault,omitempty"`   // of the request
	Reply  json.RawMessage `json:"reply,omitempty"`   // of the effect
	Number int             `json:"request,omitempty"` // among the requests with this key
}

const (
	requestKind = "request"
	effectKind  = "effect"
)

// Ledger is the append-only truth about what a provider did. An effect is on
// disk before anybody hears of it.
type Ledger struct {
	file *os.File // nil keeps the ledger in memory alone

	mu       sync.Mutex
	entries  int
	requests map[string]int
	effects  map[string]int
	total    int              // effects of all keys
	stored   map[string]Entry // the first effect of each key
	faults   map[Fault]int
	changed  chan struct{} // closed and replaced at every entry

	syncMu sync.Mutex
	synced int // entries known to be on disk
}

// NewLedger keeps a ledger in memory.
func NewLedger() *Ledger {
	return &Ledger{
		requests: map[string]int{},
		effects:  map[string]int{},
		stored:   map[string]Entry{},
		faults:   map[Fault]int{},
		changed:  make(chan struct{}),
	}
}

// OpenLedger continues the ledger in the file at path, one JSON object a
// line, and creates it where there is none. A last line that a crash cut
// short is dropped: nobody heard of its effect.
func OpenLedger(path string) (*Ledger, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	ledger := NewLedger()
	end, err := ledger.load(file)
	if err == nil {
		err = errors.Join(file.Truncate(end), seekTo(file, end))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	ledger.file = file
	return ledger, nil
}

// ReadLedger reads the ledger of a provider that may be running elsewhere.
// The result records nothing.
func ReadLedger(path string) (*Ledger, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	defer file.Close()
	ledger := NewLedger()
	if _, err := ledger.load(file); err != nil {
		return nil, err
	}
	return ledger, nil
}

// load reads every whole line and returns where the last of them ends.
func (l *Ledger) load(from io.Reader) (end int64, err error) {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return end, fmt.Errorf("reading the ledger: %w", err)
		}
		var entry Entry
		if err := json.Unmarshal(bytes.TrimSpace(line), &entry); err != nil {
			return end, fmt.Errorf("reading the ledger at octet %d: %w", end, err)
		}
		l.count(entry)
		end += int64(len(line))
	}
}

func seekTo(file *os.File, offset int64) error {
	_, err := file.Seek(offset, io.SeekStart)
	return err
}

// Close closes the file.
func (l *Ledger) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// addRequest records that a request came in and with which fault it is to
// meet. It waits for no disk: a request is no effect.
func (l *Ledger) addRequest(entry Entry, plan Plan) (Fault, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.Kind = requestKind
	entry.Number = l.requests[entry.Key] + 1
	entry.Fault = plan(entry.Key, entry.Number)
	return entry.Fault, l.append(entry)
}

// addEffect records an effect under an id of its own and returns once it is
// on disk. reply makes the provider's answer from the id.
func (l *Ledger) addEffect(entry Entry, reply func(id string) json.RawMessage) (Entry, error) {
	l.mu.Lock()
	entry.Kind = effectKind
	entry.ID = fmt.Sprintf("eff_%06d", l.total+1)
	entry.Reply = reply(entry.ID)
	err := l.append(entry)
	position := l.entries
	l.mu.Unlock()
	if err != nil {
		return Entry{}, err
	}
	return entry, l.sync(position)
}

// append writes one line. The caller holds mu.
func (l *Ledger) append(entry Entry) error {
	if l.file != nil {
		line, err := json.Marshal(entry)
		if err != nil {
			return fmt.Errorf("writing the ledger: %w", err)
		}
		if _, err := l.file.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("writing the ledger: %w", err)
		}
	}
	l.count(entry)
	return nil
}

// sync makes the first entries durable. Whoever waited while another synced
// finds the work done: one fsync serves many effects.
func (l *Ledger) sync(position int) error {
	if l.file == nil {
		return nil
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if l.synced >= position {
		return nil
	}
	l.mu.Lock()
	written := l.entries
	l.mu.Unlock()
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("syncing the ledger: %w", err)
	}
	l.synced = written
	return nil
}

// count takes an entry into memory. The caller holds mu, or is alone.
func (l *Ledger) count(entry Entry) {
	l.entries++
	switch entry.Kind {
	case requestKind:
		l.requests[entry.Key]++
		l.faults[entry.Fault]++
	case effectKind:
		l.effects[entry.Key]++
		l.total++
		if _, again := l.stored[entry.Key]; !again {
			l.stored[entry.Key] = entry
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Ledger) storedEffect(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, ok := l.stored[key]
	return entry, ok
}

// Audit is a ledger in numbers. Requests and effects that carried no key
// stand under "".
type Audit struct {
	Requests map[string]int // by key
	Effects  map[string]int // by key
	Faults   map[Fault]int  // requests by fault
}

// Audit counts what is recorded so far.
func (l *Ledger) Audit() Audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Audit{maps.Clone(l.requests), maps.Clone(l.effects), maps.Clone(l.faults)}
}

// TotalRequests counts every request.
func (a Audit) TotalRequests() int { return sum(a.Requests) }

// TotalEffects counts every effect, duplicates too.
func (a Audit) TotalEffects() int { return sum(a.Effects) }

// DuplicateEffects counts the effects beyond the first of each key. Effects
// without a key cannot be told apart and are not counted.
func (a Audit) DuplicateEffects() (duplicates int) {
	for key, effects := range a.Effects {
		if key != "" {
			duplicates += max(effects-1, 0)
		}
	}
	return duplicates
}

func sum(counts map[string]int) (total int) {
	for _, count := range counts {
		total += count
	}
	return total
}

// Wait returns once the ledger satisfies the condition, or with the context's
// error. The condition is checked at every new entry.
func (l *Ledger) Wait(ctx context.Context, condition func(Audit) bool) error {
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if condition(l.Audit()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the ledger: %w", ctx.Err())
		}
	}
}
