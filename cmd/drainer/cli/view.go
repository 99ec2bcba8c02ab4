package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// view is how glances are shown: redrawn in place, a line each, or JSON.
type view interface {
	show(glance) error
	lost(at time.Time, err error) error
	leave()
}

func newView(out io.Writer, format outputFormat) view {
	file, isFile := out.(*os.File)
	switch {
	case format == jsonText:
		return jsonView{out}
	case isFile && term.IsTerminal(int(file.Fd())):
		return screenView{file, func() (int, int) { return sizeOf(file) }}
	}
	return lineView{out}
}

// whyLost is in the words of the exit codes: the driver's take many lines.
func whyLost(err error) string {
	if errors.Is(err, errDatabaseUnreachable) {
		return errDatabaseUnreachable.Error()
	}
	return "the database does not answer"
}

// jsonView writes one object a line.
type jsonView struct{ out io.Writer }

func (v jsonView) show(seen glance) error { return json.NewEncoder(v.out).Encode(seen) }

func (v jsonView) lost(at time.Time, err error) error {
	return json.NewEncoder(v.out).Encode(map[string]any{"at": at.UTC(), "error": whyLost(err)})
}

func (jsonView) leave() {}

// lineView writes for a log: one line a glance, over all providers.
type lineView struct{ out io.Writer }

func (v lineView) show(seen glance) error {
	var pending, due, inProgress int64
	var oldest float64
	var shut []string
	for _, p := range seen.Providers {
		pending, due, inProgress = pending+p.Pending, due+p.Due, inProgress+p.InProgress
		oldest = max(oldest, p.OldestDueAgeSeconds)
		switch {
		case p.Paused:
			shut = append(shut, printable(p.Provider)+" paused")
		case p.Breaker == nil:
			shut = append(shut, printable(p.Provider)+" not configured")
		case *p.Breaker != "closed":
			shut = append(shut, printable(p.Provider)+" "+*p.Breaker)
		}
	}
	line := fmt.Sprintf("%s  pending %s  due %s  in progress %d  oldest due %s  %s", seen.At.Format(time.RFC3339),
		count(pending), count(due), inProgress, seconds(&oldest), pace(seen))
	for _, note := range append(shut, attentionNotes(seen.Attention)...) {
		line += "  " + note
	}
	_, err := fmt.Fprintln(v.out, line)
	return err
}

func (v lineView) lost(at time.Time, err error) error {
	_, failed := fmt.Fprintf(v.out, "%s  %s\n", at.UTC().Format(time.RFC3339), whyLost(err))
	return failed
}

func (lineView) leave() {}

func pace(seen glance) string {
	return fmt.Sprintf("enqueued %.1f/s  attempts %.1f/s  settled %.1f/s  workers %d", seen.Enqueued, seen.Attempts, seen.Settled, len(seen.Workers))
}

// screenView redraws from the upper left corner, and writes over what was
// there: clearing first would flicker.
type screenView struct {
	out  io.Writer
	size func() (width, height int)
}

const (
	toCorner    = "\x1b[H"
	clearToEdge = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func (v screenView) show(seen glance) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s  %s\n\n", seen.At.Format(time.RFC3339), pace(seen))
	if err := writeOverview(&text, seen.Overview); err != nil {
		return err
	}
	return v.draw(text.String())
}

func (v screenView) lost(at time.Time, err error) error {
	return v.draw(fmt.Sprintf("%s  %s; trying again\n", at.UTC().Format(time.RFC3339), whyLost(err)))
}

// draw cuts what does not fit: a line that wraps, or scrolls, moves the corner.
func (v screenView) draw(text string) error {
	width, height := v.size()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) >= height {
		lines = append(lines[:max(0, height-2)], "…")
	}
	var frame strings.Builder
	frame.WriteString(toCorner)
	for _, line := range lines {
		frame.WriteString(cut(line, width) + clearToEdge + "\r\n")
	}
	frame.WriteString(clearBelow)
	_, err := io.WriteString(v.out, frame.String())
	return err
}

// leave puts the shell's prompt below what was shown last.
func (v screenView) leave() { fmt.Fprintln(v.out) }

func cut(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width])
	}
	return line
}

// sizeOf is that of a usual terminal where the real one does not tell.
func sizeOf(terminal *os.File) (width, height int) {
	width, height, err := term.GetSize(int(terminal.Fd()))
	if err != nil || width < 1 || height < 1 {
		return 80, 24
	}
	return width, height
}
