// Command goals reads the output of benchmarks and prints which goals hold. It exits with 1 if any goal does not
// hold or was not measured.
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

// source identifies a figure.
type source struct{ benchmark, unit string }

var errFailed = errors.New("a benchmark failed, so its figures say nothing; what failed is said above")

// readFigures collects every figure of every benchmark. A benchmark that ran several times has several figures.
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

// nameOf removes the parts that go test adds: BenchmarkDrain-2 is Drain, on two processors.
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
		fmt.Fprintf(to, "| %s | %s %s | %s | %s%s | %s |\n",
			g.name, g.limit, g.show(g.gate), g.show(g.stretch), measured, g.interval(figures), verdict)
	}
	return hold
}

func (g goal) judge(figures []float64) (measured, verdict string, holds bool) {
	if len(figures) == 0 {
		return "", "**not measured**", false
	}
	figure := slices.Sorted(slices.Values(figures))[len(figures)/2]
	switch {
	case !g.limit.holds(figure, g.gate):
		return g.showApart(figure), "**does not hold**", false
	case g.limit.holds(figure, g.stretch):
		return g.showApart(figure), "holds, and stretch", true
	}
	return g.showApart(figure), "holds", true
}

// interval returns the confidence interval of a ratio, if its benchmark ran once and printed one.
func (g goal) interval(figures map[source][]float64) string {
	low, high := figures[source{g.benchmark, g.unit + "-from"}], figures[source{g.benchmark, g.unit + "-to"}]
	if len(low) != 1 || len(high) != 1 {
		return ""
	}
	return fmt.Sprintf(" (%s to %s)", strings.TrimSuffix(g.showTo(3, low[0]), g.suffix), strings.TrimSuffix(g.showTo(3, high[0]), g.suffix))
}

// showApart prints a figure with enough digits to differ from the bounds.
func (g goal) showApart(figure float64) string {
	for _, bound := range []float64{g.gate, g.stretch} {
		if figure != bound && g.show(figure) == g.show(bound) {
			return g.showTo(4, figure)
		}
	}
	return g.show(figure)
}

// show prints as many digits as the noise permits.
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

// goal is a promise about one figure of a benchmark.
type goal struct {
	name      string
	benchmark string
	unit      string
	limit     limit
	gate      float64 // a figure that misses it fails
	stretch   float64
	suffix    string // printed after figures
}

// limit says on which side of its bound a figure holds.
type limit string

const (
	atLeast limit = "≥"
	atMost  limit = "≤"
)

// goals are the goals that `make bench` checks.
var goals = []goal{
	{"drain without a provider's cost, against River", "Drain", "x-river", atLeast, 4.5, 6, " ×"},
	{"… against River without its GIN indexes", "Drain", "x-river-without-gin", atLeast, 2.8, 3.8, " ×"},
	{"WAL a row, no retries", "Retries", "WAL-B/row-0", atMost, 450, 385, " B"},
	{"… 10 % of the rows retried", "Retries", "WAL-B/row-10", atMost, 520, 460, " B"},
	{"… 50 %", "Retries", "WAL-B/row-50", atMost, 820, 750, " B"},
	{"attempts a second at 50 % retries, of those at none", "Retries", "x-50-of-0", atLeast, 0.75, 0.9, ""},
	{"HTTP, of a bare client with 64 in flight", "HTTP", "x-bare", atLeast, 0.60, 0.75, ""},
	{"HTTP against River, 64 in flight", "HTTP", "x-river", atLeast, 2.7, 3.5, " ×"},
	{"50 lanes of batch 32, of one lane", "Lanes", "x-one-lane", atLeast, 0.7, 0.85, ""},
	{"49 lanes beside one that hangs, of 49 lanes", "HangingLane", "x-alone", atLeast, 0.9, 1, ""},
	{"rows a second at a backlog of 5 M, of 10 k", "Backlog", "x-shallow-rows", atLeast, 0.7, 0.9, ""},
	{"claim p50 at a backlog of 5 M, of 10 k", "Backlog", "x-shallow-claim-p50", atMost, 1.3, 1.1, ""},
	{"last tenth beside a pinned snapshot, of the first", "PinnedSnapshot", "last/first", atLeast, 0.9, 1, ""},
	{"pick-up from the call of enqueue, one intent after the other, p50", "PickUp", "in-turn-p50-ms", atMost, 2, 1.5, " ms"},
	{"… p99", "PickUp", "in-turn-p99-ms", atMost, 6, 3, " ms"},
	{"32 producers while a daemon drains, of the same without NOTIFY", "Producers", "x-silent", atLeast, 0.9, 1, ""},
	{"enqueue() by 32 producers, of a plain INSERT", "Enqueue", "x-insert", atLeast, 0.65, 0.8, ""},
	{"a drain for which no one waits, of one that could tell no one", "Unawaited", "x-untold", atLeast, 0.98, 1, ""},
	{"wait of one of 1,000, from the commit to its end, p50", "Await", "wake-p50-ms", atMost, 10, 5, " ms"},
	{"… p99", "Await", "wake-p99-ms", atMost, 300, 100, " ms"},
	{"… the connections of all", "Await", "connections", atMost, 2, 2, ""},
	{"the same of a Python program, p50", "PythonAwait", "wake-p50-ms", atMost, 10, 5, " ms"},
	{"… p99", "PythonAwait", "wake-p99-ms", atMost, 300, 100, " ms"},
	{"… the connections of all", "PythonAwait", "connections", atMost, 2, 2, ""},
	{"the same of a TypeScript program, p50", "TypeScriptAwait", "wake-p50-ms", atMost, 10, 5, " ms"},
	{"… p99", "TypeScriptAwait", "wake-p99-ms", atMost, 300, 100, " ms"},
	{"… the connections of all", "TypeScriptAwait", "connections", atMost, 2, 2, ""},
	{"status by the four-tuple among 1 M, p50", "Status", "p50-ms", atMost, 0.5, 0.2, " ms"},
	{"… p99", "Status", "p99-ms", atMost, 1, 0.4, " ms"},
	{"daemon's memory at a backlog of 1 M", "Backlog", "MB-1M", atMost, 40, 25, " MB"},
	{"… at 5 M", "Backlog", "MB-5M", atMost, 40, 25, " MB"},
	{"two replicas, of one", "Replicas", "x-alone-2", atLeast, 0.9, 1, ""},
	{"three replicas, of one", "Replicas", "x-alone-3", atLeast, 0.9, 1, ""},
	{"10,000 runs rolled back, undos a second, of a plain drain of as many", "Rollback", "x-plain", atLeast, 0.25, 0.5, ""},
	{"… the last one begun", "Rollback", "last-begun-s", atMost, 10, 5, " s"},
	{"… beside 3,000 sagas that wait for humans, of none", "Rollback", "x-none-waiting", atLeast, 0.9, 1, ""},
	{"a tenant's lone intent beside a million of another tenant, waits longer than alone by, p50", "Fairness", "more-p50-ms", atMost, 50, 20, " ms"},
	{"… p99", "Fairness", "more-p99-ms", atMost, 300, 100, " ms"},
	{"1,000 tenants, of one", "Fairness", "x-one-tenant", atLeast, 0.8, 0.95, ""},
	{"one listed tenant, of none listed", "Fairness", "x-unlisted", atLeast, 0.97, 1, ""},
	{"the console's slowest page among 5 M intents, p95", "Console", "page-p95-ms", atMost, 300, 150, " ms"},
	{"a drain beside ten open pages, of none", "Console", "x-unwatched", atLeast, 0.97, 1, ""},
	{"… processor time a row, of none", "Console", "x-unwatched-time", atMost, 1.03, 1.01, ""},
}

func (l limit) holds(figure, bound float64) bool {
	if l == atMost {
		return figure <= bound
	}
	return figure >= bound
}
