package postgres

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainer"
)

var (
	//go:embed sql/history/look.sql
	lookSQL string
	//go:embed sql/history/answer.sql
	answerSQL string
)

// Guard configures how a process notices that the database lost commits.
type Guard struct {
	Lossless bool          // the configuration promises that a failover loses nothing
	Witness  string        // the file that remembers across restarts; empty for none
	Lease    time.Duration // how long every worker has to say whether its commits are there
	Log      *slog.Logger
}

// memory holds all that this process knows of the database's history. A database that lost commits has also lost its own
// memory of them, so only a memory outside of it can notice the loss.
type memory struct {
	Guard

	looks sync.Mutex // one look at a time

	mu           sync.Mutex
	workers      map[string]int // of this process, and how many losses it knew of when each joined
	losses       int
	known        known
	since        time.Time      // when this process met known.History: no clock that leaps shortens the lease
	isFresh      bool           // known is a file's; what was committed to the process before is not known
	acknowledged []acknowledged // commits that no look has proved to be in the history yet
	unwritable   bool           // the witness could not be written
	paged        chan struct{}  // see [Store.Incidents]
	lock         *os.File       // the witness is this process's alone
}

// known is a row of outbox.history, and how far it was seen.
type known struct {
	History int    `json:"history"`
	LSN     string `json:"lsn"`
}

// acknowledged is one row of a batch whose commit was answered: a claim's, or a settled one, which has
// no claim.
type acknowledged struct {
	worker        string
	claim, intent int64
	attempt       int
	looked        bool
	before        uint64 // once looked: a log position behind its commit
}

func newMemory() *memory {
	return &memory{Guard: Guard{Log: slog.New(slog.DiscardHandler)}, workers: map[string]int{}, known: known{LSN: "0/0"}, isFresh: true, paged: make(chan struct{}, 1)}
}

// Incidents has a value once a look of this process opened an incident.
func (s *Store) Incidents() <-chan struct{} { return s.memory.paged }

func (m *memory) page() {
	select {
	case m.paged <- struct{}{}:
	default: // it has one
	}
}

// Guard sets how lost commits are noticed. It must be called before the first worker joins.
func (s *Store) Guard(guard Guard) { s.memory.Guard = guard }

// historyOf returns the history in which a worker may claim. A worker that has to start over has none, and neither claims
// nor gives rows back any more.
func (m *memory) historyOf(worker string) known {
	m.mu.Lock()
	defer m.mu.Unlock()
	if joined, is := m.workers[worker]; is && joined < m.losses {
		return known{History: -1, LSN: "0/0"}
	}
	return m.known
}

// remember keeps one row of a committed batch. A database loses whole commits, so one row stands for its batch.
func (m *memory) remember(worker string, batch drainer.Batch, reply drainer.BatchReply) {
	var row *drainer.Row
	var claim int64
	for i := range batch.Settle {
		if !slices.Contains(reply.Refused, i) {
			row = batch.Settle[i].Row
			break
		}
	}
	for i := 0; row == nil && i < len(reply.Claimed); i++ {
		if rows := reply.Claimed[i].Rows; len(rows) > 0 {
			row, claim = rows[0], rows[0].ClaimID
		}
	}
	if row == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acknowledged = append(m.acknowledged, acknowledged{worker: worker, claim: claim, intent: row.IntentID, attempt: row.Attempt})
}

// look compares the database with its own recorded history and with this process's memory.
func (s *Store) look(ctx context.Context) error {
	m := s.memory
	m.looks.Lock()
	defer m.looks.Unlock()
	if err := m.readWitness(); err != nil {
		return err
	}
	m.mu.Lock()
	before, count, waited := m.known, len(m.acknowledged), !m.since.IsZero() && time.Since(m.since) >= m.Lease
	m.mu.Unlock()
	accepts := ""
	if m.Lossless {
		accepts = "failover: lossless"
	}
	now, here, change := known{}, "", ""
	look := func() error {
		return s.life.QueryRow(ctx, lookSQL, before.History, before.LSN, waited, accepts).Scan(&now.History, &now.LSN, &here, &change)
	}
	err := look()
	if errors.Is(err, pgx.ErrNoRows) {
		err = look() // The statement waited for a worker that began a new history, and its snapshot is older than that.
	}
	if err != nil {
		return fmt.Errorf("look at the database's history: %w", err)
	}
	if change != "" {
		m.Log.Error("the database may have lost commits", "change", change, "history", now.History, "accepted_by", accepts)
		m.page()
	}
	if before.History != 0 && before.History != now.History {
		if err := s.answer(ctx, before, now); err != nil {
			return err
		}
	}
	m.update(before, now, here, count)
	m.writeWitness(now)
	return nil
}

// answer records whether the new history still has all commits that this process remembers.
func (s *Store) answer(ctx context.Context, before, now known) error {
	m := s.memory
	m.mu.Lock()
	workers, claims, intents, attempts, of := []string{}, []int64{}, []int64{}, []int{}, []string{}
	for worker := range m.workers {
		workers = append(workers, worker)
	}
	for _, t := range m.acknowledged {
		claims, intents, attempts, of = append(claims, t.claim), append(intents, t.intent), append(attempts, t.attempt), append(of, t.worker)
	}
	counts := !m.isFresh
	m.mu.Unlock()
	var lost bool
	if err := s.life.QueryRow(ctx, answerSQL, workers, now.History, before.History, before.LSN, claims, intents, attempts, counts, of).Scan(&lost); err != nil {
		return fmt.Errorf("compare the database's history: %w", err)
	}
	if lost {
		m.page()
		m.Log.Error("the database lost commits that this process was told of; it starts over", "history", now.History)
		m.mu.Lock()
		m.losses++
		m.mu.Unlock()
	}
	return nil
}

// update takes over the result of a look. Commits before an earlier look are proved to be in the history by a later
// look that finds the earlier one's log position in the database.
func (m *memory) update(before, now known, here string, count int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.isFresh = now, false
	if before.History != now.History {
		m.since = time.Now()
		m.acknowledged = nil // all of it was compared, or there was nothing to compare
		return
	}
	if position(before.LSN) > position(now.LSN) {
		m.known.LSN = before.LSN
	}
	seen := position(m.known.LSN)
	for i := range m.acknowledged[:count] {
		if t := &m.acknowledged[i]; !t.looked {
			t.looked, t.before = true, position(here)
		}
	}
	m.acknowledged = slices.DeleteFunc(m.acknowledged, func(t acknowledged) bool { return t.looked && t.before <= seen })
}

var logPosition = regexp.MustCompile(`^[0-9A-F]{1,8}/[0-9A-F]{1,8}$`)

// position returns a pg_lsn as a number.
func position(lsn string) uint64 {
	var high, low uint64
	_, _ = fmt.Sscanf(lsn, "%X/%X", &high, &low) // 0 for what is none
	return high<<32 | low
}

// readWitness reads the witness before the first look.
func (m *memory) readWitness() error {
	if m.Witness == "" || m.historyOf("").History != 0 {
		return nil
	}
	if err := m.lockWitness(); errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("history.witness: %s is in use by another process; end that one, or give each daemon a file of its own", m.Witness)
	} // what else keeps it from being locked keeps it from being written, and is said there
	text, err := os.ReadFile(m.Witness)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("history.witness cannot be read, and without it lost commits may not be noticed; correct its name or its permissions: %w", err)
	}
	var read known
	if err := json.Unmarshal(text, &read); err != nil || read.History < 1 || !logPosition.MatchString(read.LSN) {
		return fmt.Errorf("history.witness: %s holds no witness of a daemon; name a file of its own, or remove it if the database was not restored", m.Witness)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.since = read, time.Now()
	return nil
}

// lockWitness locks the witness until the process ends. The lock has a file of its own, because each write replaces the witness.
func (m *memory) lockWitness() error {
	if m.lock != nil {
		return nil
	}
	file, err := os.OpenFile(filepath.Clean(m.Witness)+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return err
	}
	m.lock = file
	return nil
}

// writeWitness replaces the witness file atomically. If that fails, the guard goes on without it.
func (m *memory) writeWitness(now known) {
	if m.Witness == "" {
		return
	}
	text, err := json.Marshal(now)
	if err == nil {
		err = m.lockWitness()
	}
	if err == nil {
		err = replaceFile(filepath.Clean(m.Witness), text)
	}
	if (err != nil) != m.unwritable {
		m.Log.Warn("writing history.witness", "error", err)
	}
	m.unwritable = err != nil
}

// replaceFile syncs the new file to disk before it renames it: after a power loss the file has the old text or the new one.
func replaceFile(name string, text []byte) error {
	next, err := os.OpenFile(name+".next", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = next.Write(text)
	if err := errors.Join(err, next.Sync(), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), name)
}

// mustRejoin reports whether commits were lost since the worker joined.
func (m *memory) mustRejoin(worker string) bool {
	return m.historyOf(worker).History < 0
}

func (m *memory) join(worker string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers[worker] = m.losses
}

func (m *memory) leave(worker string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workers, worker)
}
