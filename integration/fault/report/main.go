// Report runs the tests that inject the catalogue's faults, and prints the verdict of each case. It exits with 1
// unless every case held.
//
//	go run ./integration/fault/report [-case 13]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/agentoutbox/drainer/integration/fault"
)

func main() {
	only := flag.Int("case", 0, "inject this case alone, by its number")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cases := fault.Catalogue
	if *only != 0 {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c fault.Case) bool { return c.Number != *only })
	}
	if len(cases) == 0 {
		fmt.Fprintf(os.Stderr, "report: there is no case %d; they are in integration/fault/catalogue.go\n", *only)
		os.Exit(2)
	}
	findings, passed, err := inject(ctx, cases)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	held := printTable(os.Stdout, cases, findings)
	if held && !passed {
		fmt.Fprintln(os.Stderr, "report: every case held, but go test failed; what failed is said above")
	}
	if !held || !passed {
		os.Exit(1)
	}
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Key, Value, Output string
}

// inject runs the tests of the cases, one package after another, and reports whether all of them passed.
func inject(ctx context.Context, cases []fault.Case) (found *findings, passed bool, err error) {
	packages, tests := needed(cases)
	found = newFindings()
	if len(tests) == 0 {
		return found, true, nil
	}
	arguments := append([]string{"test", "-json", "-count=1", "-p=1", "-timeout=30m", "-run", "^(" + strings.Join(tests, "|") + ")$"}, packages...)
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := command.Start(); err != nil {
		return nil, false, fmt.Errorf("go test: %w", err)
	}
	if err := found.follow(output); err != nil {
		return nil, false, fmt.Errorf("reading what go test says: %w", err)
	}
	err = command.Wait()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		return nil, false, fmt.Errorf("go test: %w", err)
	}
	return found, err == nil, ctx.Err()
}

func needed(cases []fault.Case) (packages, tests []string) {
	for _, c := range cases {
		for _, test := range c.Tests {
			folder, name, _ := strings.Cut(test, " ")
			packages = append(packages, "./"+folder)
			tests = append(tests, name)
		}
	}
	slices.Sort(packages)
	slices.Sort(tests)
	return slices.Compact(packages), slices.Compact(tests)
}

func (f *findings) follow(output io.Reader) error {
	decoder := json.NewDecoder(output)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f.take(e)
	}
}

// findings holds the reports of the tests, and how each test ended.
type findings struct {
	injected map[string]map[int]int // by test, then by case
	ended    map[string]string      // test → pass, fail or skip
	said     map[string]*strings.Builder
}

func newFindings() *findings {
	return &findings{injected: map[string]map[int]int{}, ended: map[string]string{}, said: map[string]*strings.Builder{}}
}

func (f *findings) take(e event) {
	test := e.Package + " " + e.Test
	switch e.Action {
	case "attr":
		var number, times int
		if _, err := fmt.Sscanf(e.Value, "%d %d", &number, &times); e.Key != fault.Attribute || err != nil {
			return
		}
		if f.injected[test] == nil {
			f.injected[test] = map[int]int{}
		}
		f.injected[test][number] += times
	case "output":
		if f.said[test] == nil {
			f.said[test] = &strings.Builder{}
		}
		f.said[test].WriteString(e.Output)
	case "pass", "skip", "fail":
		f.end(test, e)
	}
}

// end prints the progress, and the whole output of a failed test.
func (f *findings) end(test string, e event) {
	f.ended[test] = e.Action
	if e.Test == "" || !strings.Contains(e.Test, "/") {
		fmt.Fprintf(os.Stderr, "%-4s %s\n", e.Action, test)
	}
	if e.Action == "fail" && f.said[test] != nil {
		fmt.Fprint(os.Stderr, f.said[test].String())
	}
	delete(f.said, test)
}

// of returns how often a case was injected, and whether it held: all of its tests passed, and all other tests that
// reported it.
func (f *findings) of(c fault.Case) (times int, held bool) {
	held = true
	for _, test := range c.Tests {
		held = held && f.ended[module+test] == "pass"
	}
	for test, cases := range f.injected {
		if cases[c.Number] > 0 {
			times += cases[c.Number]
			held = held && f.ended[test] == "pass"
		}
	}
	return times, held && times > 0
}

const module = "github.com/agentoutbox/drainer/"

// printTable reports whether each case was injected and held.
func printTable(to io.Writer, cases []fault.Case, found *findings) bool {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tFAULT\tINJECTED\tCHECKED\tVERDICT")
	injected, fine := 0, true
	for _, c := range cases {
		times, held := found.of(c)
		verdict := "held"
		switch {
		case times == 0:
			verdict, fine = "NOT INJECTED", false
		case !held:
			verdict, fine = "BROKEN", false
		case c.Open:
			verdict = "not survived"
		}
		if times > 0 {
			injected++
		}
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\n", c.Number, c.Fault, times, c.Checked, verdict)
	}
	_ = table.Flush()
	fmt.Fprintf(to, "\n%d of %d cases were injected.\n", injected, len(cases))
	return fine
}
