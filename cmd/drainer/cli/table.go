package cli

import (
	"cmp"
	"io"
	"strings"
	"time"
)

// table is a heading, and rows of what a screen can show.
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

func (t table) show(s screen) error {
	grid := t.layOut(s)
	grid.fit(s.columns)
	return s.write(grid.draw(s))
}

// grid is a table as text: the first line is the heading.
type grid struct {
	lines  [][]painted
	widths []int
}

// painted is a cell. A time has a short form, its age, for a screen that is too narrow.
type painted struct{ text, colour, short string }

// gap is the room between two columns.
const gap = 2

func (t table) layOut(s screen) *grid {
	g := &grid{lines: make([][]painted, 1, len(t.rows)+1)}
	for _, title := range t.heading {
		g.lines[0] = append(g.lines[0], painted{text: title, colour: bold})
	}
	for _, row := range t.rows {
		line := make([]painted, len(row))
		for i, value := range row {
			line[i].text, line[i].colour = s.cell(value, s.moment)
			if isTime(value) {
				line[i].short, _ = s.cell(value, s.age)
				if i < len(t.heading) {
					g.lines[0][i] = painted{t.heading[i] + joint + "(" + s.zone().String() + ")", bold, t.heading[i]}
				}
			}
		}
		g.lines = append(g.lines, line)
	}
	g.measure()
	return g
}

func isTime(value any) bool {
	switch v := value.(type) {
	case time.Time:
		return true
	case *time.Time:
		return v != nil
	}
	return false
}

func (g *grid) measure() {
	g.widths = nil
	for _, line := range g.lines {
		for i, cell := range line {
			if i == len(g.widths) {
				g.widths = append(g.widths, 0)
			}
			g.widths[i] = max(g.widths[i], displayWidth(cell.text))
		}
	}
}

func (g *grid) width() int {
	total := gap * (len(g.widths) - 1)
	for _, width := range g.widths {
		total += width
	}
	return total
}

// fit makes a grid no wider than a terminal, if that can be: columns without a value go,
// times become ages, then the widest columns are wrapped, at first between words alone.
func (g *grid) fit(columns int) {
	if columns == 0 || g.width() <= columns {
		return
	}
	if g.dropEmpty(); g.width() <= columns {
		return
	}
	g.shorten()
	for _, floors := range [][]int{g.longestWords(), make([]int, len(g.widths))} {
		for g.width() > columns {
			widest := -1
			for i, width := range g.widths {
				if width > max(floors[i], narrowest) && (widest < 0 || width > g.widths[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break
			}
			g.widths[widest]--
		}
	}
}

// narrowest is how far a column shrinks at most: below, text cannot be read.
const narrowest = 7

func (g *grid) dropEmpty() {
	if len(g.lines) == 1 {
		return
	}
	for i := len(g.widths) - 1; i >= 0; i-- {
		empty := true
		for _, line := range g.lines[1:] {
			empty = empty && (i >= len(line) || line[i].text == "")
		}
		if empty {
			for l, line := range g.lines {
				if i < len(line) {
					g.lines[l] = append(line[:i:i], line[i+1:]...)
				}
			}
		}
	}
	g.measure()
}

func (g *grid) shorten() {
	for _, line := range g.lines {
		for i := range line {
			line[i].text = cmp.Or(line[i].short, line[i].text)
		}
	}
	g.measure()
}

func (g *grid) longestWords() []int {
	longest := make([]int, len(g.widths))
	for _, line := range g.lines {
		for i, cell := range line {
			for word := range strings.SplitSeq(cell.text, " ") {
				longest[i] = max(longest[i], displayWidth(word))
			}
		}
	}
	return longest
}

func (g *grid) draw(s screen) string {
	var text strings.Builder
	for _, line := range g.lines {
		folded, height := make([][]string, len(line)), 1
		for i, cell := range line {
			folded[i] = []string{cell.text}
			if displayWidth(cell.text) > g.widths[i] {
				folded[i] = wrap(cell.text, g.widths[i])
			}
			height = max(height, len(folded[i]))
		}
		for row := range height {
			var drawn strings.Builder
			pending := 0 // spaces, which no line ends with
			for i, cell := range line {
				part := ""
				if row < len(folded[i]) {
					part = folded[i][row]
				}
				if part != "" {
					drawn.WriteString(strings.Repeat(" ", pending) + s.paint(part, cell.colour))
					pending = 0
				}
				pending += g.widths[i] - displayWidth(part) + gap
			}
			text.WriteString(drawn.String() + "\n")
		}
	}
	return text.String()
}
