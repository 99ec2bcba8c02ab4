package cli

import (
	"io"
	"sync"
	"time"
)

const (
	// logLinger is for how long a line waits for company. A system call for each
	// line would cost a busy daemon more than the line itself.
	logLinger = 5 * time.Millisecond
	// enoughLines, in octets, wait for no more company: a larger write saves
	// little, and its room would stay.
	enoughLines = 64 << 10
	// mostWaiting bounds, in octets, the lines that wait for a slow reader. Their room
	// stays, twice: a quarter of a megabyte is a thousand attempts.
	mostWaiting = 256 << 10
)

// logWriter writes many lines at once. A process that is killed loses the lines
// of its last moment.
type logWriter struct {
	out    io.Writer
	enough chan struct{} // capacity 1; lines that need not wait
	closed chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	changed *sync.Cond
	waiting []byte
	spare   []byte // the room of the lines before
	isOver  bool
}

func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{out: out, enough: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{})}
	w.changed = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// Write returns at once, unless the reader cannot keep up.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > mostWaiting && !w.isOver {
		w.changed.Wait()
	}
	if w.isOver {
		return w.out.Write(line)
	}
	if len(w.waiting) == 0 {
		w.changed.Broadcast()
	}
	w.waiting = append(w.waiting, line...)
	if len(w.waiting) >= enoughLines {
		select {
		case w.enough <- struct{}{}:
		default:
		}
	}
	return len(line), nil
}

// Close returns once every line is written. Later ones are written as they come.
func (w *logWriter) Close() {
	w.mu.Lock()
	first := !w.isOver
	w.isOver = true
	w.changed.Broadcast()
	w.mu.Unlock()
	if first {
		close(w.closed)
	}
	<-w.done
}

func (w *logWriter) run() {
	defer close(w.done)
	for w.awaitLines() {
		select {
		case <-time.After(logLinger):
		case <-w.enough:
		case <-w.closed:
		}
		w.mu.Lock()
		lines := w.waiting
		w.waiting, w.spare = w.spare[:0], lines
		w.changed.Broadcast()
		w.mu.Unlock()
		_, _ = w.out.Write(lines) // there is nowhere to say that the log is gone
	}
}

// awaitLines reports false once there will be none.
func (w *logWriter) awaitLines() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) == 0 && !w.isOver {
		w.changed.Wait()
	}
	return len(w.waiting) > 0
}
