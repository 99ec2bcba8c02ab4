package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/agentoutbox/drainer/integration/fault"
)

// findings are what the tests reported, and how they ended.
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

// end shows progress, and all that a failed test said.
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

// of is how often a case was injected, and whether it held: every test of it
// passed, and so did every other that met it.
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
