package explore

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

// Chance takes one that nobody can count on.
func (s *Steps[S]) Chance(who, what string, change func(*S)) {
	s.Add(who, what, change)
	s.Taken[len(s.Taken)-1].Chance = true
}
