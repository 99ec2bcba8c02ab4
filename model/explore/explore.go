// Package explore visits every state of a small model, breadth first. So the first counterexample that it finds is
// a shortest one.
//
// A model is a comparable state and the steps that can happen in it. Nothing is random and nothing takes time:
// every possible next step is tried. So an order of events that a test meets once in a million runs is met here
// every time.
package explore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Step is an event in a state, and the state after it.
type Step[S comparable] struct {
	Who, What string
	To        S
	Chance    bool // it may never happen: a fault, or a decision of a human
}

func (s Step[S]) String() string { return s.Who + " " + s.What }

// Property must hold for each step that can happen. A property of states uses only Step.To.
type Property[S comparable] struct {
	Name  string
	Holds func(from S, step Step[S]) bool
}

// Always returns a property of states.
func Always[S comparable](name string, holds func(*S) bool) Property[S] {
	return Property[S]{Name: name, Holds: func(_ S, step Step[S]) bool { return holds(&step.To) }}
}

// Model describes the events that may happen, and the invariants that must hold
// in any order of them.
type Model[S comparable] struct {
	Start      S
	Steps      func(S) []Step[S]
	Properties []Property[S]

	// Rests reports whether nothing more needs to happen in a state. From every state, steps without chance must
	// lead to such a state.
	Rests func(S) bool
}

// These must hold for every model, in addition to its own properties.
const (
	NoDeadlock  = "something can always happen, until all is at rest"
	ComesToRest = "everything can come to rest, without a fault and without help"
)

// Report holds the findings of a search.
type Report[S comparable] struct {
	States, Steps  int
	Counterexample *Counterexample[S] // nil if every property holds
}

// Explore visits states until a property is broken or all states are visited.
func Explore[S comparable](model Model[S]) Report[S] {
	search := newSearch(model, nil)
	broken := search.run()
	if broken == nil {
		broken = search.stuck()
	}
	return Report[S]{States: len(search.states), Steps: len(search.edges), Counterexample: broken}
}

const noPredecessor = -1

// search is a breadth-first search. Its states are in the order in which it met them.
type search[S comparable] struct {
	model   Model[S]
	visit   func(from int, step Step[S]) // called for every step; may be nil
	states  []S
	number  map[S]int
	reached []reached[S] // for each state, how it was met first
	edges   []edge
}

type reached[S comparable] struct {
	from      int
	who, what string
}

type edge struct {
	from, to int32
	sure     bool // not a matter of chance
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

// Steps collects the possible next steps.
type Steps[S comparable] struct {
	From   S
	Forget func(*S) // removes from each new state the details that make no difference any more
	Taken  []Step[S]
}

// Add adds a step that will happen.
func (s *Steps[S]) Add(who, what string, change func(*S)) {
	to := s.From
	change(&to)
	s.Forget(&to)
	s.Taken = append(s.Taken, Step[S]{Who: who, What: what, To: to})
}

// Chance adds a step that may never happen.
func (s *Steps[S]) Chance(who, what string, change func(*S)) {
	s.Add(who, what, change)
	s.Taken[len(s.Taken)-1].Chance = true
}

// Kind distinguishes the steps that a tour must take. It returns false for steps that it need not take.
type Kind[S, K comparable] func(from S, step Step[S]) (K, bool)

// detour is the longest way, in steps, that a tour goes to a kind that it has not taken yet. If none is that near,
// the tour starts again.
const detour = 5

// Tour returns walks from the start that together take a step of every kind. It assumes that the model's
// properties hold.
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

// firsts returns a shortest path to a step of each kind, the shortest path first.
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

// isShown reports whether a step of the kind of the path's last step was taken.
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

// walk takes a path, and continues while a new kind is near.
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

// near returns a shortest path to a step of a new kind, or nil if none is within detour steps.
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

// stuck looks for a state from which steps without chance cannot reach a state at rest. It searches backwards from
// the states at rest.
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
	for number := range s.states { // nearest to the start first
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

// Counterexample is a shortest trace that breaks a property.
type Counterexample[S comparable] struct {
	Property string
	Trace    []Step[S]
}

func (c *Counterexample[S]) String() string {
	return fmt.Sprintf("broken: %s\n%s", c.Property, Numbered(c.Trace))
}

// Numbered lists the steps, one on each line.
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

// path returns the steps from the start to a state.
func (s *search[S]) path(to int) (path []Step[S]) {
	for s.reached[to].from != noPredecessor {
		how := s.reached[to]
		path = append(path, Step[S]{Who: how.who, What: how.what, To: s.states[to]})
		to = how.from
	}
	slices.Reverse(path)
	return path
}

// Undivided makes a transaction of several steps atomic: while a step continues an open transaction, no other step
// can happen.
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

// Breaks fails the test unless this property is the first to break. It logs the counterexample.
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
