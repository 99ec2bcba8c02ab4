// Package share models whose rows a lane claims: three tenants, and claims of a single row, where a share is hardest
// to keep. The program's rules are in drainer/scan.go, which has tests of its own for weights and large claims.
package share

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/agentoutbox/drainer/model/explore"
)

const (
	tenants = 3
	// Patience is how many claims a due row may see go to others.
	Patience = 4
	// NobodyStarves is the promise.
	NobodyStarves = "no due tenant waits for more than a few claims of others"
)

// Guards are the rules that keep the promise.
type Guards uint8

const (
	// Searches beside tenants that are known to be due.
	Searches Guards = 1 << iota
	// TakesTurns among them: the one goes first that is owed most.
	TakesTurns
)

// Model is the lane without some of its guards.
type Model struct{ Without Guards }

// State counts due rows and holds the planner's beliefs of them.
type State struct {
	Due      [tenants]uint8 // rows, up to two
	Hungry   [tenants]bool  // known to be due
	Owed     [tenants]uint8 // claims since its last row, while it was hungry
	Searched bool           // by the last claim
	Turn     uint8          // the tenant with which the next search begins
	Waits    [tenants]uint8 // claims that went to others while it was due
}

// Explored is the model with the promise.
func (m Model) Explored() explore.Model[State] {
	return explore.Model[State]{
		Steps: m.steps,
		Rests: func(s State) bool { return s.Due == [tenants]uint8{} },
		Properties: []explore.Property[State]{explore.Always(NobodyStarves, func(s *State) bool {
			return slices.Max(s.Waits[:]) <= Patience
		})},
	}
}

func (m Model) steps(s State) []explore.Step[State] {
	steps := []explore.Step[State]{{Who: "lane", What: "claims", To: m.claim(s)}}
	for t := range tenants {
		if s.Due[t] < 2 {
			to := s
			to.Due[t]++
			steps = append(steps, explore.Step[State]{Who: fmt.Sprint("tenant ", t+1), What: "enqueues", To: to, Chance: true})
		}
	}
	return steps
}

// claim takes one row, of the first tenant in its order that has one.
func (m Model) claim(s State) State {
	order := m.order(&s)
	var isPassed [tenants]bool
	for _, t := range order {
		isPassed[t] = true
		if s.Due[t] > 0 {
			s.Due[t]--
			s.Hungry[t], s.Owed[t], s.Waits[t] = true, 0, 0
			m.wait(&s, t)
			break
		}
		s.Hungry[t], s.Owed[t] = false, 0
	}
	for _, t := range order { // what was not reached counts as due
		s.Hungry[t] = s.Hungry[t] || !isPassed[t]
	}
	return s
}

func (m Model) wait(s *State, served int) {
	for t := range tenants {
		switch {
		case t == served || s.Due[t] == 0:
			s.Waits[t] = 0
		default:
			s.Waits[t]++
		}
		if s.Hungry[t] && t != served {
			s.Owed[t] = min(s.Owed[t]+1, tenants)
		}
	}
}

func (m Model) order(s *State) (order []int) {
	var hungry []int
	for t := range tenants {
		if s.Hungry[t] {
			hungry = append(hungry, t)
		}
	}
	if m.Without&TakesTurns == 0 {
		slices.SortStableFunc(hungry, func(a, b int) int { return cmp.Compare(s.Owed[b], s.Owed[a]) })
	}
	s.Searched = len(hungry) == 0 || (m.Without&Searches == 0 && !s.Searched)
	if s.Searched {
		for i := range tenants {
			if t := (int(s.Turn) + i) % tenants; !s.Hungry[t] {
				order = append(order, t)
			}
		}
		s.Turn = (s.Turn + 1) % tenants
	}
	return append(order, hungry...)
}
