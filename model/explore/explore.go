// Package explore visits every state that a small model can be in, the nearest
// first: the first counterexample it meets is a shortest one.
//
// A model is a comparable state and what can happen in it. Nothing is random
// and nothing takes time: whatever can happen next is tried, so an order of
// events that a test meets once in a million runs is met here every time.
package explore

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

// Model is what may happen, and what must hold whatever happens.
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
	ComesToRest = "everything can come to rest, and nothing has to go wrong, nor anybody to help, for that"
)

// Report is what a search found.
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
