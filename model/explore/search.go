package explore

const noPredecessor = -1

// search is a breadth-first search: states in the order in which it met them.
type search[S comparable] struct {
	model   Model[S]
	visit   func(from int, step Step[S]) // sees every step; nil: nobody does
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
