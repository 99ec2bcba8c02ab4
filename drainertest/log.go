package drainertest

import (
	"bytes"
	"sync"
)

// Log holds what was logged so far, by whichever goroutine.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
