package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// screen is the place where a table is shown. Only a terminal has a width, and colours unless its user refuses them.
// A file or another program gets whole lines.
type screen struct {
	io.Writer
	columns int // 0 for no limit
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

// state is a cell with a colour: a status, or an incident's or saga's state.
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

// zone returns the local time zone with today's offset, so that older times are shown with the same offset.
func (s screen) zone() *time.Location {
	name, offset := s.now.Local().Zone()
	return time.FixedZone(name, offset)
}

// joint is a space at which a line is not broken. A cell cannot contain one, since printable escapes it.
const joint = "\x00"

// moment formats a time for a table whose heading names the zone.
func (s screen) moment(t time.Time) string {
	return t.In(s.zone()).Format("2006-01-02"+joint+"15:04:05") + " (" + s.age(t) + ")"
}

// zonedMoment formats a time with its zone, if no heading names it.
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

// roughly formats a duration in one unit: the largest of which it has at least two.
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

// displayWidth returns the columns that a terminal needs for printable text.
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

// wrap breaks a text at its spaces, and a word that is too long at any place.
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

// cut returns the beginning of a word that fits, at least one rune. It prefers to end after a sign that separates
// parts of names, if one is in the second half.
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

// details are the fields of one thing, one on each line. Empty fields are left out.
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

// fold wraps a text that begins after an indent.
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

// cell returns a value's text and its colour. The text of a nil pointer is "".
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

// table is a heading, and rows of values that a screen can show.
type table struct {
	heading []string
	rows    [][]any
}

func tableOf[T any](heading []string, items []T, row func(T) []any) table {
	t := table{heading: heading, rows: make([][]any, len(items))}
	for i, item := range items {
		t.rows[i] = row(item)
	}
	return t
}

func (t table) print(to io.Writer) error { return t.show(screenOf(to)) }

// show makes a table no wider than the terminal, if possible: it shows ages instead of times, removes columns
// without a value, and then wraps the widest columns.
func (t table) show(s screen) error {
	lines := t.layOut(s, true)
	widths, _ := measure(lines)
	if s.columns > 0 && total(widths) > s.columns {
		lines = withoutEmpty(t.layOut(s, false))
		var words []int
		widths, words = measure(lines)
		anywhere := make([]int, len(widths))
		shrink(widths, words, narrowing, s.columns) // first break lines only between words
		shrink(widths, anywhere, narrowing, s.columns)
		shrink(widths, anywhere, narrowest, s.columns)
	}
	return s.write(draw(s, lines, widths))
}

// painted is the text of a cell with its colour.
type painted struct{ text, colour string }

// gap is the number of spaces between two columns.
const gap = 2

// layOut makes the lines of a table. The first line is the heading, which names the zone if times are shown in full.
func (t table) layOut(s screen, wholeTimes bool) [][]painted {
	heading := make([]painted, len(t.heading))
	for i, title := range t.heading {
		heading[i] = painted{title, bold}
	}
	lines := [][]painted{heading}
	for _, row := range t.rows {
		line := make([]painted, len(row))
		for i, value := range row {
			line[i].text, line[i].colour = s.cell(value, func(at time.Time) string {
				if !wholeTimes {
					return s.age(at)
				}
				if i < len(heading) {
					heading[i].text = t.heading[i] + joint + "(" + s.zone().String() + ")"
				}
				return s.moment(at)
			})
		}
		lines = append(lines, line)
	}
	return lines
}

// measure returns the width of each column, and of its longest word.
func measure(lines [][]painted) (widths, words []int) {
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths, words = append(widths, 0), append(words, 0)
			}
			widths[i] = max(widths[i], displayWidth(cell.text))
			for word := range strings.SplitSeq(cell.text, " ") {
				words[i] = max(words[i], displayWidth(word))
			}
		}
	}
	return widths, words
}

func total(widths []int) int {
	all := gap * (len(widths) - 1)
	for _, width := range widths {
		all += width
	}
	return all
}

// The widths to which columns shrink. Narrower text is hard to read, but a table with many columns must shrink
// further to fit into 80.
const (
	narrowing = 7
	narrowest = 5
)

// shrink makes the widest column narrower until all fit. It makes no column narrower than its floor or least.
func shrink(widths, floors []int, least, columns int) {
	for total(widths) > columns {
		widest := -1
		for i, width := range widths {
			if width > max(floors[i], least) && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func withoutEmpty(lines [][]painted) [][]painted {
	kept := make([][]painted, len(lines))
	for i := range slices.MaxFunc(lines, func(a, b []painted) int { return len(a) - len(b) }) {
		hasValue := func(line []painted) bool { return i < len(line) && line[i].text != "" }
		if len(lines) > 1 && !slices.ContainsFunc(lines[1:], hasValue) {
			continue
		}
		for l, line := range lines {
			if i < len(line) {
				kept[l] = append(kept[l], line[i])
			}
		}
	}
	return kept
}

func draw(s screen, lines [][]painted, widths []int) string {
	var text strings.Builder
	for _, line := range lines {
		folded, height := make([][]string, len(line)), 1
		for i, cell := range line {
			folded[i] = []string{cell.text}
			if displayWidth(cell.text) > widths[i] {
				folded[i] = wrap(cell.text, widths[i])
			}
			height = max(height, len(folded[i]))
		}
		for row := range height {
			var drawn strings.Builder
			pending := 0 // spaces, which are not written at the end of a line
			for i, cell := range line {
				part := ""
				if row < len(folded[i]) {
					part = folded[i][row]
				}
				if part != "" {
					drawn.WriteString(strings.Repeat(" ", pending) + s.paint(part, cell.colour))
					pending = 0
				}
				pending += widths[i] - displayWidth(part) + gap
			}
			text.WriteString(drawn.String() + "\n")
		}
	}
	return text.String()
}
