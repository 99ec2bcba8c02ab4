package dispatchtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// Entry is one line of a ledger: a request that came in, an effect that
// happened, or something else that a key brings from now on.
type Entry struct {
	Kind   string          `json:"kind"` // "request", "lookup", "effect" or "answer"
	At     time.Time       `json:"at"`
	Key    string          `json:"key"` // the idempotency key, "" without one
	Method string          `json:"method,omitempty"`
	Path   string          `json:"path,omitempty"`
	ID     string          `json:"id,omitempty"`      // of the effect
	Body   string          `json:"body,omitempty"`    // SHA-256 of the request body, in hex
	Fault  Fault           `json:"fault,omitempty"`   // of the request
	Status int             `json:"status,omitempty"`  // of the reply; 0 is 200
	Reply  json.RawMessage `json:"reply,omitempty"`   // what the key brings again
	Number int             `json:"request,omitempty"` // among the requests with this key
}

const (
	requestKind = "request" // asks for an effect
	lookupKind  = "lookup"  // asks about one
	effectKind  = "effect"
	answerKind  = "answer" // kept under the key without an effect
)

func (e Entry) status() int {
	if e.Status == 0 {
		return http.StatusOK
	}
	return e.Status
}

// Ledger is the append-only truth about what a provider did. An effect is on
// disk before anybody hears of it.
type Ledger struct {
	file *os.File // nil keeps the ledger in memory alone

	mu      sync.Mutex
	entries int
	effects []Entry          // of all keys, in their order
	audit   Audit            // so far
	first   map[string]Entry // the first effect of each key
	kept    map[string]Entry // what each key brings again: its newest effect or answer
	changed chan struct{}    // closed and replaced at every entry

	syncMu sync.Mutex
	synced int // entries known to be on disk
}

// NewLedger keeps a ledger in memory.
func NewLedger() *Ledger {
	return &Ledger{
		audit:   newAudit(),
		first:   map[string]Entry{},
		kept:    map[string]Entry{},
		changed: make(chan struct{}),
	}
}

// addRequest records that a request came in and with which fault it is to
// meet. It waits for no disk: a request is no effect.
func (l *Ledger) addRequest(entry Entry, plan Plan) (Fault, error) {
	entry.Kind = requestKind
	return l.addNumbered(entry, plan, l.audit.Requests)
}

// addLookup is addRequest for a question about entry.Key.
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

// addEffect records an effect under an id of its own and returns once it is
// on disk. reply makes the provider's answer from the id. Setting what is set
// already changes nothing and records nothing.
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

// addAnswer records what the key brings from now on, though nothing happened.
func (l *Ledger) addAnswer(entry Entry) (Entry, error) {
	l.mu.Lock()
	entry.Kind = answerKind
	return entry, l.appendDurably(entry)
}

// appendDurably takes over mu from the caller and releases it.
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

// count takes an entry into memory. The caller holds mu, or is alone.
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

// Effects lists every effect, in the order in which they happened.
func (l *Ledger) Effects() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.effects)
}

// firstEffect is what a key did, if it did anything.
func (l *Ledger) firstEffect(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, found := l.first[key]
	return entry, found
}

// keptUnder is what a key brings again, if it was used before.
func (l *Ledger) keptUnder(key string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, found := l.kept[key]
	return entry, found
}
