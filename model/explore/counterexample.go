package explore

import (
	"fmt"
	"slices"
	"strings"
)

// Counterexample is a shortest way to break a property.
type Counterexample[S comparable] struct {
	Property string
	Trace    []Step[S]
}

func (c *Counterexample[S]) String() string {
	return fmt.Sprintf("broken: %s\n%s", c.Property, Told(c.Trace))
}

// Told lists steps, to be read.
func Told[S comparable](steps []Step[S]) string {
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
