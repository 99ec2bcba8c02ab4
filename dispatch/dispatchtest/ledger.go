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
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// Entry is one line of a ledger: a request that arrived, an effect, or an answer that a key returns from now on.
type Entry struct {
	Kind   string          `json:"kind"` // "request", "lookup", "effect" or "answer"
	At     time.Time       `json:"at"`
	Key    string          `json:"key"` // "" without an idempotency key
	Method string          `json:"method,omitempty"`
	Path   string          `json:"path,omitempty"`
	ID     string          `json:"id,omitempty"`      // id of the effect
	Body   string          `json:"body,omitempty"`    // SHA-256 of the request body, in hex
	Fault  Fault           `json:"fault,omitempty"`   // the fault of the request
	Status int             `json:"status,omitempty"`  // the status of the reply; 0 is 200
	Reply  json.RawMessage `json:"reply,omitempty"`   // the reply that the key returns again
	Number int             `json:"request,omitempty"` // counts the requests with this key
}

const (
	requestKind = "request" // asks for an effect
	lookupKind  = "lookup"  // asks whether there was an effect
	effectKind  = "effect"
	answerKind  = "answer" // stored under the key, without an effect
)

func (e Entry) status() int {
	if e.Status == 0 {
		return http.StatusOK
	}
	return e.Status
}

// Ledger is the append-only record of a provider's effects. An effect is on disk before it is answered.
type Ledger struct {
	file *os.File // nil if the ledger is only in memory

	mu      sync.Mutex
	entries int
	effects []Entry          // of all keys, in order
	audit   Audit            // the counts so far
	first   map[string]Entry // the first effect of each key
	kept    map[string]Entry // the newest effect or answer of each key, whose reply it returns again
	changed chan struct{}    // closed and replaced at every entry

	syncMu sync.Mutex
	synced int // entries known to be on disk
}

// NewLedger returns an empty ledger in memory.
func NewLedger() *Ledger {
	return &Ledger{
		audit:   newAudit(),
		first:   map[string]Entry{},
		kept:    map[string]Entry{},
		changed: make(chan struct{}),
	}
}

// addRequest records a request and the fault that the plan chooses for it. It does not wait for the disk, since a
// request is not an effect.
func (l *Ledger) addRequest(entry Entry, plan Plan) (Fault, error) {
	entry.Kind = requestKind
	return l.addNumbered(entry, plan, l.audit.Requests)
}

// addLookup is addRequest for a lookup of entry.Key.
func (l *Ledger) addLookup(entry Entry, plan Plan) (Fault, error) {
	entry.Kind = lookupKind
	return l.addNumbered(entry, plan, l.audit.Lookups)
}

func (l *Ledger) addNumbered(entry Entry, plan Plan, earlier map[string]int) (Fault, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.Number = earlier[entry.Key] + 1
	entry.Fault = plan(entry.Key, entry.Number)
	return entry.Fault, l.append(entry)
}

// addEffect records an effect under a new id and returns once the effect is on disk. reply makes the provider's
// answer from the id. A PUT that repeats the first PUT changes nothing and is not recorded.
func (l *Ledger) addEffect(entry Entry, reply func(id string) json.RawMessage) (Entry, error) {
	l.mu.Lock()
	if first, found := l.first[entry.Key]; found && entry.repeats(first) {
		l.mu.Unlock()
		entry.ID, entry.Reply = first.ID, reply(first.ID)
		return entry, nil
	}
	entry.Kind = effectKind
	entry.ID = fmt.Sprintf("eff_%06d", len(l.effects)+1)
	entry.Reply = reply(entry.ID)
	return entry, l.appendDurably(entry)
}

func (e Entry) repeats(first Entry) bool {
	return e.Method == http.MethodPut && e.Path == first.Path && e.Body == first.Body
}

// addAnswer records an answer without an effect, which the key returns from now on.
func (l *Ledger) addAnswer(entry Entry) (Entry, error) {
	l.mu.Lock()
	entry.Kind = answerKind
	return entry, l.appendDurably(entry)
}

// appendDurably appends an entry and waits until it is on disk. The caller holds mu, and appendDurably releases it.
func (l *Ledger) appendDurably(entry Entry) error {
	err := l.append(entry)
	position := l.entries
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return l.sync(position)
}

// append writes one line. The caller holds mu.
func (l *Ledger) append(entry Entry) error {
	if err := l.write(entry); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	l.count(entry)
	return nil
}

// count adds an entry to the memory. The caller holds mu, or no other goroutine knows the ledger.
func (l *Ledger) count(entry Entry) {
	l.entries++
	l.audit.count(entry)
	switch entry.Kind {
	case effectKind:
		l.effects = append(l.effects, entry)
		if _, again := l.first[entry.Key]; !again {
			l.first[entry.Key] = entry
		}
		l.kept[entry.Key] = entry
	case answerKind:
		l.kept[entry.Key] = entry
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Effects returns every effect, in the order in which they happened.
func (l *Ledger) Effects() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.effects)
}

// firstEffect returns the first effect of a key, if there was one.
func (l *Ledger) firstEffect(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, found := l.first[key]
	return entry, found
}

// keptUnder returns the stored reply of a key, if it was used before.
func (l *Ledger) keptUnder(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, found := l.kept[key]
	return entry, found
}

// OpenLedger continues the ledger in the file at path, which has one JSON object in each line. It creates a missing
// file. It drops a last line that a crash cut short: the effect of that line was never answered.
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

// ReadLedger reads the ledger of a provider that may run in another process. The returned ledger does not write to
// the file.
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

// load reads every complete line and returns where the last of them ends.
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
			return end, fmt.Errorf("reading the ledger at byte %d: %w", end, err)
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

func (l *Ledger) write(entry Entry) error {
	if l.file == nil {
		return nil
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	_, err = l.file.Write(append(line, '\n'))
	return err
}

// sync makes the entries up to position durable. If another caller synced them meanwhile, it does nothing. So one
// fsync serves many effects.
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

// Audit has the counts of a ledger. Requests and effects without a key count under "".
type Audit struct {
	Requests map[string]int // by key, without lookups
	Lookups  map[string]int // by the key of the lookup
	Effects  map[string]int // by key
	Faults   map[Fault]int  // requests, by fault
}

func newAudit() Audit {
	return Audit{map[string]int{}, map[string]int{}, map[string]int{}, map[Fault]int{}}
}

func (a Audit) count(entry Entry) {
	switch entry.Kind {
	case requestKind:
		a.Requests[entry.Key]++
		a.Faults[entry.Fault]++
	case lookupKind:
		a.Lookups[entry.Key]++
	case effectKind:
		a.Effects[entry.Key]++
	}
}

// TotalRequests returns the number of all requests.
func (a Audit) TotalRequests() int { return sum(a.Requests) }

// TotalEffects returns the number of all effects, including duplicates.
func (a Audit) TotalEffects() int { return sum(a.Effects) }

// DuplicateEffects returns the number of effects beyond the first of each key. Effects without a key cannot be
// distinguished and are not counted.
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

// Audit returns the counts so far.
func (l *Ledger) Audit() Audit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Audit{
		Requests: maps.Clone(l.audit.Requests),
		Lookups:  maps.Clone(l.audit.Lookups),
		Effects:  maps.Clone(l.audit.Effects),
		Faults:   maps.Clone(l.audit.Faults),
	}
}

// Wait returns nil once the condition holds for the ledger, or the context's error. It checks the condition at every
// new entry.
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
