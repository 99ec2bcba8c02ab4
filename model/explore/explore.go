// Package explore visits every state that a small model can be in, the nearest
// first: the first counterexample it meets is a shortest one.
//
// A model is a comparable state and what can happen in it. Nothing is random
// and nothing takes time: whatever can happen next is tried, so an order of
// events that a test meets once in a million runs is met here every time.
package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Step is something that happens in a state, and the state it leads to.
type Step[S comparable] struct {
	Who, What string
	To        S
	Chance    bool // it may never happen: a fault, or what a human decides
}

func (s Step[S]) String() string { return s.Who + " " + s.What }

// Property holds for each step that can happen. One of states looks at Step.To
// alone.
type Property[S comparable] struct {
	Name  string
	Holds func(from S, step Step[S]) bool
}

// Always is a property of states.
func Always[S comparable](name string, holds func(*S) bool) Property[S] {
	return Property[S]{Name: name, Holds: func(_ S, step Step[S]) bool { return holds(&step.To) }}
}

// Model describes the events that may happen, and the invariants that must hold
// in any order of them.
type Model[S comparable] struct {
	Start      S
	Steps      func(S) []Step[S]
	Properties []Property[S]

	// Rests holds in states where nothing more needs to happen. From every
	// state one of them must be within reach by steps that are not left to
	// chance.
	Rests func(S) bool
}

// What every model must keep, beside its own properties.
const (
	NoDeadlock  = "something can always happen, until all is at rest"
	ComesToRest = "everything can come to rest, without a fault and without help"
)

// Report holds the findings of a search.
type Report[S comparable] struct {
	States, Steps  int
	Counterexample *Counterexample[S] // nil: every property holds
}

// Explore visits states until a property is broken or none is left.
func Explore[S comparable](model Model[S]) Report[S] {
	search := newSearch(model, nil)
	broken := search.run()
	if broken == nil {
		broken = search.stuck()
	}
	return Report[S]{States: len(search.states), Steps: len(search.edges), Counterexample: broken}
}

const noPredecessor = -1

// search is a breadth-first search: states in the order in which it met them.
type search[S comparable] struct {
	model   Model[S]
	visit   func(from int, step Step[S]) // sees every step; may be nil
	states  []S
	number  map[S]int
	reached []reached[S] // of each state, how it was met first
	edges   []edge
}

type reached[S comparable] struct {
	from      int
	who, what string
}

type edge struct {
	from, to int32
	sure     bool // not left to chance
}

func newSearch[S comparable](model Model[S], visit func(int, Step[S])) *search[S] {
	s := &search[S]{model: model, visit: visit, number: map[S]int{}}
	s.meet(model.Start, reached[S]{from: noPredecessor})
	return s
}

func (s *search[S]) meet(state S, how reached[S]) int {
	if number, known := s.number[state]; known {
		return number
	}
	number := len(s.states)
	s.number[state] = number
	s.states = append(s.states, state)
	s.reached = append(s.reached, how)
	return number
}

func (s *search[S]) run() *Counterexample[S] {
	for from := 0; from < len(s.states); from++ {
		steps := s.model.Steps(s.states[from])
		if len(steps) == 0 && !s.model.Rests(s.states[from]) {
			return s.counterexample(NoDeadlock, from)
		}
		for _, step := range steps {
			if broken := s.take(from, step); broken != nil {
				return broken
			}
		}
	}
	return nil
}

func (s *search[S]) take(from int, step Step[S]) *Counterexample[S] {
	for _, property := range s.model.Properties {
		if !property.Holds(s.states[from], step) {
			return s.counterexample(property.Name, from, step)
		}
	}
	if s.visit != nil {
		s.visit(from, step)
	}
	to := s.meet(step.To, reached[S]{from, step.Who, step.What})
	s.edges = append(s.edges, edge{int32(from), int32(to), !step.Chance})
	return nil
}

// Steps gathers what can happen next.
type Steps[S comparable] struct {
	From   S
	Forget func(*S) // drops from each new state what makes no difference any more
	Taken  []Step[S]
}

// Add takes one step.
func (s *Steps[S]) Add(who, what string, change func(*S)) {
	to := s.From
	change(&to)
	s.Forget(&to)
	s.Taken = append(s.Taken, Step[S]{Who: who, What: what, To: to})
}

// Chance takes one that may never happen.
func (s *Steps[S]) Chance(who, what string, change func(*S)) {
	s.Add(who, what, change)
	s.Taken[len(s.Taken)-1].Chance = true
}

// Kind distinguishes the steps that a tour is to show; false means that a step
// need not be shown.
type Kind[S, K comparable] func(from S, step Step[S]) (K, bool)

// detour is how many steps a tour takes at most to what it has not shown yet,
// rather than begin again.
const detour = 5

// Tour is a set of walks from the start that take a step of every kind there
// is. It takes the model's properties for granted.
func Tour[S, K comparable](model Model[S], kind Kind[S, K]) [][]Step[S] {
	t := &tour[S, K]{model: model, kind: kind, shown: map[K]bool{}}
	var walks [][]Step[S]
	for _, path := range firsts(model, kind) {
		if !t.isShown(path) {
			walks = append(walks, t.walk(path))
		}
	}
	return walks
}

// firsts are shortest paths to a step of each kind, the shortest first.
func firsts[S, K comparable](model Model[S], kind Kind[S, K]) (paths [][]Step[S]) {
	known := map[K]bool{}
	var s *search[S]
	s = newSearch(model, func(from int, step Step[S]) {
		if k, counts := kind(s.states[from], step); counts && !known[k] {
			known[k] = true
			paths = append(paths, append(s.path(from), step))
		}
	})
	s.run()
	return paths
}

type tour[S, K comparable] struct {
	model Model[S]
	kind  Kind[S, K]
	shown map[K]bool
}

// isShown reports whether the last step of a path from the start was shown.
func (t *tour[S, K]) isShown(path []Step[S]) bool {
	from := t.model.Start
	if len(path) > 1 {
		from = path[len(path)-2].To
	}
	return !t.isNew(from, path[len(path)-1])
}

func (t *tour[S, K]) isNew(from S, step Step[S]) bool {
	k, counts := t.kind(from, step)
	return counts && !t.shown[k]
}

// walk takes a path, and goes on as long as something new is near.
func (t *tour[S, K]) walk(path []Step[S]) (walk []Step[S]) {
	at := t.model.Start
	for len(path) > 0 {
		for _, step := range path {
			if k, counts := t.kind(at, step); counts {
				t.shown[k] = true
			}
			at = step.To
		}
		walk = append(walk, path...)
		path = t.near(at)
	}
	return walk
}

// near is a shortest way to a step that is not shown yet.
func (t *tour[S, K]) near(at S) []Step[S] {
	type place struct {
		state S
		path  []Step[S]
	}
	seen := map[S]bool{at: true}
	for open := []place{{state: at}}; len(open) > 0; open = open[1:] {
		here := open[0]
		for _, step := range t.model.Steps(here.state) {
			path := append(here.path[:len(here.path):len(here.path)], step)
			if t.isNew(here.state, step) {
				return path
			}
			if len(path) < detour && !seen[step.To] {
				seen[step.To] = true
				open = append(open, place{step.To, path})
			}
		}
	}
	return nil
}

// stuck looks for a state from which no rest can be reached by steps that
// are not left to chance. It goes backwards from the states at rest.
func (s *search[S]) stuck() *Counterexample[S] {
	before := s.predecessors()
	canRest := make([]bool, len(s.states))
	var open []int32
	for number, state := range s.states {
		if s.model.Rests(state) {
			canRest[number] = true
			open = append(open, int32(number))
		}
	}
	for len(open) > 0 {
		state := open[len(open)-1]
		open = open[:len(open)-1]
		for _, earlier := range before[state] {
			if !canRest[earlier] {
				canRest[earlier] = true
				open = append(open, earlier)
			}
		}
	}
	for number := range s.states { // the nearest first
		if !canRest[number] {
			return s.counterexample(ComesToRest, number)
		}
	}
	return nil
}

func (s *search[S]) predecessors() [][]int32 {
	before := make([][]int32, len(s.states))
	for _, e := range s.edges {
		if e.sure {
			before[e.to] = append(before[e.to], e.from)
		}
	}
	return before
}

// Counterexample is a shortest way to break a property.
type Counterexample[S comparable] struct {
	Property string
	Trace    []Step[S]
}

func (c *Counterexample[S]) String() string {
	return fmt.Sprintf("broken: %s\n%s", c.Property, Numbered(c.Trace))
}

// Numbered lists the steps, one a line.
func Numbered[S comparable](steps []Step[S]) string {
	var text strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&text, "%3d. %s\n", i+1, step)
	}
	return text.String()
}

func (s *search[S]) counterexample(property string, at int, then ...Step[S]) *Counterexample[S] {
	return &Counterexample[S]{Property: property, Trace: append(s.path(at), then...)}
}

// path leads from the start to a state.
func (s *search[S]) path(to int) (path []Step[S]) {
	for s.reached[to].from != noPredecessor {
		how := s.reached[to]
		path = append(path, Step[S]{Who: how.who, What: how.what, To: s.states[to]})
		to = how.from
	}
	slices.Reverse(path)
	return path
}

// Undivided takes a transaction of several steps at once: where a step goes on
// with the one that is under way, nothing comes in between.
func Undivided[S comparable](m Model[S], goesOn func(S, Step[S]) bool) Model[S] {
	every := m.Steps
	m.Steps = func(s S) []Step[S] {
		steps := every(s)
		isOf := func(step Step[S]) bool { return goesOn(s, step) }
		if slices.ContainsFunc(steps, isOf) {
			steps = slices.DeleteFunc(steps, func(step Step[S]) bool { return !isOf(step) })
		}
		return steps
	}
	return m
}

// Chosen lists the names whose bits are set.
func Chosen(set uint32, names []string) string {
	var chosen []string
	for i, name := range names {
		if set&(1<<i) != 0 {
			chosen = append(chosen, name)
		}
	}
	return strings.Join(chosen, "+")
}

// Holds fails the test if an order of events breaks a property.
func Holds[S comparable](t *testing.T, model Model[S]) Report[S] {
	t.Helper()
	report := Explore(model)
	if report.Counterexample != nil {
		t.Error(report.Counterexample)
	}
	return report
}

// Breaks fails the test unless this property is the first to break. It logs how.
func Breaks[S comparable](t *testing.T, model Model[S], without, property string) {
	t.Helper()
	report := Explore(model)
	if report.Counterexample == nil {
		t.Fatalf("nothing breaks in %d states", report.States)
	}
	t.Logf("without %s, %s", without, report.Counterexample)
	if got := report.Counterexample.Property; got != property {
		t.Errorf("it breaks %q, want %q", got, property)
	}
}
