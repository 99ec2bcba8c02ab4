package dispatchtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

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
