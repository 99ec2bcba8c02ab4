package explore

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
