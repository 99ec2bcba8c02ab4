// Command goals reads what benchmarks print and tells which goals hold. It
// exits with 1 if any does not, or was not measured.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	chosen := flag.String("bench", ".", "look at the goals of these benchmarks alone, a `regexp` as for go test")
	flag.Parse()
	hold, err := run(os.Stdin, os.Stdout, *chosen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "goals:", err)
	}
	if !hold {
		os.Exit(1)
	}
}

func run(from io.Reader, to io.Writer, chosen string) (hold bool, err error) {
	benchmarks, err := regexp.Compile(chosen)
	if err != nil {
		return false, err
	}
	figures, err := readFigures(from)
	if err != nil {
		return false, err
	}
	return report(to, goalsOf(benchmarks), figures), nil
}

func goalsOf(benchmarks *regexp.Regexp) []goal {
	return slices.DeleteFunc(slices.Clone(goals), func(g goal) bool { return !benchmarks.MatchString("Benchmark" + g.benchmark) })
}

// source is where a figure comes from.
type source struct{ benchmark, unit string }

var errFailed = errors.New("a benchmark failed, so its figures say nothing; what failed is said above")

// readFigures collects every figure of every benchmark. One that ran several
// times has several.
func readFigures(output io.Reader) (map[source][]float64, error) {
	figures := map[source][]float64{}
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, "--- FAIL") || strings.HasPrefix(line, "FAIL") {
			return nil, errFailed
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		benchmark := nameOf(fields[0])
		for pair := range slices.Chunk(fields[2:], 2) {
			if len(pair) < 2 {
				continue
			}
			figure, err := strconv.ParseFloat(pair[0], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is no figure", fields[0], pair[0])
			}
			from := source{benchmark, pair[1]}
			figures[from] = append(figures[from], figure)
		}
	}
	return figures, lines.Err()
}

// nameOf cuts off what go test adds: BenchmarkDrain-2 is Drain, on two
// processors.
func nameOf(field string) string {
	name := strings.TrimPrefix(field, "Benchmark")
	if at := strings.LastIndexByte(name, '-'); at > 0 {
		name = name[:at]
	}
	return name
}

// report prints a table in Markdown and reports whether every gate holds.
func report(to io.Writer, goals []goal, figures map[source][]float64) bool {
	hold := true
	fmt.Fprintln(to, "| goal | gate | stretch | measured | |\n|---|---|---|---|---|")
	for _, g := range goals {
		measured, verdict, holds := g.judge(figures[source{g.benchmark, g.unit}])
		hold = hold && holds
		fmt.Fprintf(to, "| %s | %s %s | %s | %s | %s |\n", g.name, g.limit, g.show(g.gate), g.show(g.stretch), measured, verdict)
	}
	return hold
}

func (g goal) judge(figures []float64) (measured, verdict string, holds bool) {
	if len(figures) == 0 {
		return "", "**not measured**", false
	}
	slices.Sort(figures)
	figure := figures[len(figures)/2]
	switch {
	case !g.limit.holds(figure, g.gate):
		return g.showApart(figure), "**does not hold**", false
	case g.limit.holds(figure, g.stretch):
		return g.showApart(figure), "holds, and stretch", true
	}
	return g.showApart(figure), "holds", true
}

// showApart tells a figure from the bound that it would be rounded to.
func (g goal) showApart(figure float64) string {
	for _, bound := range []float64{g.gate, g.stretch} {
		if figure != bound && g.show(figure) == g.show(bound) {
			return g.showTo(4, figure)
		}
	}
	return g.show(figure)
}

// show keeps as many digits as the noise leaves a meaning.
func (g goal) show(figure float64) string {
	if figure >= 100 {
		return g.showTo(0, figure)
	}
	return g.showTo(2, figure)
}

func (g goal) showTo(precision int, figure float64) string {
	text := strconv.FormatFloat(figure, 'f', precision, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + g.suffix
}
