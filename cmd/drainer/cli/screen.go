package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// screen is where a table is read. Only a terminal has a width, and only a terminal that
// wants them has colours: a file or another program gets whole lines.
type screen struct {
	io.Writer
	columns int // 0: no limit
	colours bool
	now     time.Time
}

func screenOf(to io.Writer) screen {
	s := screen{Writer: to, now: time.Now()}
	file, ok := to.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return s
	}
	s.columns = 80
	if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
		s.columns = columns
	}
	s.colours = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return s
}

// state is a cell that has a colour: a status, or an incident's or saga's state.
type state string

var colours = map[state]string{
	"completed": "32", "compensated": "32", "resolved": "32", "closed": "32",
	"failed": "31", "compensation_failed": "31", "open": "31",
	"unknown": "33", "in_progress": "36", "begun": "36", "half_open": "33", "acknowledged": "33",
}

const bold = "1"

func (s screen) paint(text, colour string) string {
	if !s.colours || colour == "" || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// zone is the reader's, with the offset of today: an older time is shown in the same one.
func (s screen) zone() *time.Location {
	name, offset := s.now.Local().Zone()
	return time.FixedZone(name, offset)
}

// joint is a space at which no line is broken. A cell's own one was written out by printable.
const joint = "\x00"

// moment is a time in a table, whose heading tells the zone.
func (s screen) moment(t time.Time) string {
	return t.In(s.zone()).Format("2006-01-02"+joint+"15:04:05") + " (" + s.age(t) + ")"
}

// moment with its zone, where no heading tells it.
func (s screen) zonedMoment(t time.Time) string {
	return t.In(s.zone()).Format("2006-01-02"+joint+"15:04:05"+joint+"MST") + " (" + s.age(t) + ")"
}

func (s screen) age(t time.Time) string {
	ago := s.now.Sub(t)
	if ago < 0 {
		return "in" + joint + roughly(-ago)
	}
	return roughly(ago) + joint + "ago"
}

// roughly has one unit, the largest of which there are two.
func roughly(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0fm", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0fh", d.Hours())
	}
	return fmt.Sprintf("%.0fd", d.Hours()/24)
}

// displayWidth counts the columns that a terminal gives to printable text.
func displayWidth(text string) (columns int) {
	for _, r := range text {
		columns += runeWidth(r)
	}
	return columns
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// wrap breaks a text at its spaces, and a word that is too long anywhere.
func wrap(text string, columns int) (lines []string) {
	line, used := "", 0
	for word := range strings.SplitSeq(text, " ") {
		for displayWidth(word) > columns {
			if used > 0 {
				lines, line, used = append(lines, line), "", 0
			}
			head := cut(word, columns)
			lines, word = append(lines, head), word[len(head):]
		}
		switch wide := displayWidth(word); {
		case line == "":
			line, used = word, wide
		case used+1+wide <= columns:
			line, used = line+" "+word, used+1+wide
		default:
			lines, line, used = append(lines, line), word, wide
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}

// cut is the beginning of a word that fits, of one rune at least. It ends behind a sign that
// parts names, if one is near.
func cut(word string, columns int) string {
	used, fits := 0, len(word)
	for i, r := range word {
		if used += runeWidth(r); used > columns && i > 0 {
			fits = i
			break
		}
	}
	if near := strings.LastIndexAny(word[:fits], "-_/.:,") + 1; near > fits/2 {
		return word[:near]
	}
	return word[:fits]
}

// details are the fields of one thing, a line each; those that are empty are left out.
type details [][2]any

func (d details) print(to io.Writer) error {
	s := screenOf(to)
	label := 0
	for _, field := range d {
		label = max(label, len(field[0].(string)))
	}
	var text strings.Builder
	for _, field := range d {
		value, colour := s.cell(field[1], s.zonedMoment)
		if value == "" {
			continue
		}
		name := field[0].(string)
		for _, line := range s.fold(value, label+2) {
			fmt.Fprintf(&text, "%s%s%s\n", s.paint(name, bold), strings.Repeat(" ", label+2-len(name)), s.paint(line, colour))
			name = ""
		}
	}
	return s.write(text.String())
}

// fold wraps what stands to the right of an indent.
func (s screen) fold(text string, indent int) []string {
	if s.columns == 0 {
		return []string{text}
	}
	return wrap(text, max(20, s.columns-indent))
}

func (s screen) write(text string) error {
	if _, err := io.WriteString(s.Writer, strings.ReplaceAll(text, joint, " ")); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// cell is a value's text, and its colour. It shows nothing for a nil pointer.
func (s screen) cell(value any, moment func(time.Time) string) (text, colour string) {
	switch v := value.(type) {
	case *string:
		return printable(*cmp.Or(v, new(string))), ""
	case *int:
		return optional(v), ""
	case *int64:
		return optional(v), ""
	case *time.Time:
		if v == nil {
			return "", ""
		}
		return moment(*v), ""
	case time.Time:
		return moment(v), ""
	case state:
		return printable(string(v)), colours[v]
	}
	return printable(fmt.Sprint(value)), ""
}

func optional[T any](value *T) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(*value)
}
