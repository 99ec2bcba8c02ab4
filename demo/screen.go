package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	barWidth  = 32
	lineEvery = time.Second // where nothing can be redrawn
)

// Screen tells a person what happens: on a terminal with a block that is
// redrawn, elsewhere line by line.
type Screen struct {
	out      io.Writer
	terminal bool
	started  time.Time

	mu       sync.Mutex
	progress *Progress // what the block shows; nil before the first
	drawn    int       // lines of the block
	shown    time.Time
}

// NewScreen writes to out.
func NewScreen(out io.Writer, terminal bool) *Screen {
	return &Screen{out: out, terminal: terminal, started: time.Now()}
}

// Say tells of an event.
func (s *Screen) Say(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintf(s.out, "%5.1fs  %s\n", time.Since(s.started).Seconds(), event)
	s.draw()
}

// Show tells of progress.
func (s *Screen) Show(progress Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = &progress
	if s.terminal {
		s.erase()
		s.draw()
		return
	}
	if time.Since(s.shown) >= lineEvery {
		s.shown = time.Now()
		fmt.Fprintf(s.out, "%5.1fs  enqueued %d, settled %d of %d, in progress %d, effects %d, retries %d, recovered %d; %s\n",
			time.Since(s.started).Seconds(), progress.Enqueued, progress.Settled, progress.Wanted,
			progress.InProgress, progress.Effects, progress.Retries, progress.Recovered, progress.Trips)
	}
}

// Close removes the block and leaves what was said.
func (s *Screen) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.progress = nil
}

func (s *Screen) erase() {
	if s.drawn > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", s.drawn)
		s.drawn = 0
	}
}

func (s *Screen) draw() {
	if !s.terminal || s.progress == nil {
		return
	}
	p := s.progress
	lines := []string{
		"",
		bar("enqueued", p.Enqueued, p.Wanted),
		bar("effects", p.Effects, p.Wanted),
		bar("settled", p.Settled, p.Wanted),
		fmt.Sprintf("  in progress %-5d retries %-6d recovered %d", p.InProgress, p.Retries, p.Recovered),
		"  " + p.Trips.String(),
	}
	fmt.Fprintln(s.out, strings.Join(lines, "\n"))
	s.drawn = len(lines)
}

func bar(name string, count, all int) string {
	full := min(barWidth, barWidth*count/max(1, all))
	return fmt.Sprintf("  %-9s %s%s %6d", name, strings.Repeat("█", full), strings.Repeat("░", barWidth-full), count)
}
