// Package share models which rows a lane claims, in three small parts. Each claim takes a single row, because a
// fair share is hardest to keep then.
//
//	Model  three tenants, one of them with a limit in flight: none of them starves
//	Limit  two workers that claim rows of one tenant while its limit changes: it is kept
//	Runs   one tenant with a run of many rows: no other run starves
//
// The program's rules are in drainer/scan.go, drainer/ahead.go and outbox.room_in_flight. They have tests of their
// own for weights, for large claims and for several runs with many rows.
package share

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/agentoutbox/drainer/model/explore"
)

// Guards are the rules that the promises depend on.
type Guards uint16

// The guards that the models may lack.
const (
	// Searches: the lane also searches for tenants that it does not know to be due.
	Searches Guards = 1 << iota
	// TakesTurns: of the tenants that are known to be due, the one that has waited longest is first.
	TakesTurns
	// PassesLimited: a search continues behind a tenant at its limit.
	PassesLimited
	// LocksTenant: while a claim counts the rows in flight, no other claim counts them and the limit cannot
	// change, until the claim is committed.
	LocksTenant
	// WaitsForClaims: the first limit is committed after all claims that did not see it, and counts their rows.
	WaitsForClaims
	// LooksAhead: every second claim looks ahead for rows of other runs.
	LooksAhead
	// TakesTheLast: a look ahead takes the last row that it read, so that the next look begins there.
	TakesTheLast
	// StartsAgain: at the end of the rows, looks ahead start again from the front.
	StartsAgain
	// ScansAll: at the end of the rows, claims in due order start again from the first row.
	ScansAll
)

const (
	tenants = 3
	limited = 0 // the tenant with a limit of one row in flight
	// Patience is the largest number of claims for others while a row is due.
	Patience = 4
	// NobodyStarves is the promise of [Model].
	NobodyStarves = "no due tenant that has room waits for more than a few claims of others"
)

// Model is a lane without some of its guards.
type Model struct{ Without Guards }

// State holds the due rows, and the planner's knowledge of them.
type State struct {
	Due      [tenants]uint8 // number of due rows, at most two
	InFlight bool           // a row of the limited tenant is in flight
	Hungry   [tenants]bool  // the planner knows that the tenant is due
	Owed     [tenants]uint8 // claims since its last row, while it was hungry
	Searched bool           // the last claim searched
	Turn     uint8          // the tenant at which the next search begins
	Waits    [tenants]uint8 // claims for others while the tenant was due
}

// Explored returns the model with its promise.
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
	if s.InFlight {
		s.InFlight = false
		steps = append(steps, explore.Step[State]{Who: fmt.Sprint("tenant ", limited+1), What: "has a row settled", To: s})
	}
	return steps
}

func (s *State) hasRoom(t int) bool { return t != limited || !s.InFlight }

// claim takes one row: of the first tenant in its order that has a row and room for it.
func (m Model) claim(s State) State {
	search, hungry := m.order(&s)
	order := slices.Concat(search, hungry)
	var isPassed [tenants]bool
	for _, t := range order {
		if isPassed[t] {
			continue
		}
		isPassed[t] = true
		if s.Due[t] > 0 && s.hasRoom(t) {
			s.Due[t]--
			s.InFlight = s.InFlight || t == limited
			s.Hungry[t], s.Owed[t], s.Waits[t] = true, 0, 0
			m.wait(&s, t)
			break
		}
		if isSearch := slices.Contains(search, t); isSearch && s.Due[t] > 0 && m.Without&PassesLimited != 0 {
			for _, behind := range search {
				isPassed[behind] = true
			}
		}
		s.Hungry[t], s.Owed[t] = false, 0
	}
	for _, t := range order { // tenants that were not reached count as due
		s.Hungry[t] = s.Hungry[t] || !isPassed[t]
	}
	return s
}

func (m Model) wait(s *State, served int) {
	for t := range tenants {
		switch {
		case t == served || s.Due[t] == 0 || !s.hasRoom(t):
			s.Waits[t] = 0
		default:
			s.Waits[t]++
		}
		if s.Hungry[t] && t != served {
			s.Owed[t] = min(s.Owed[t]+1, tenants)
		}
	}
}

// order returns the tenants of a search, if this claim searches, and the tenants that are known to be due.
func (m Model) order(s *State) (search, hungry []int) {
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
				search = append(search, t)
			}
		}
		s.Turn = (s.Turn + 1) % tenants
	}
	return search, hungry
}

// LimitIsKept is the promise of [Limit].
const LimitIsKept = "no claim leaves more of a tenant in flight than its limit is then"

// Limit is a tenant whose rows two workers claim.
type Limit struct{ Without Guards }

// Tenant holds the counts in the database, and the counts that workers read there.
type Tenant struct {
	Most, InFlight uint8
	Unlimited      bool
	Unaware        [2]bool  // a worker claims, and has seen no limit
	Counts         [2]bool  // a worker has counted, and has not committed
	Room           [2]uint8 // the room that it found
}

// Explored returns the model with its promise.
func (m Limit) Explored() explore.Model[Tenant] {
	return explore.Model[Tenant]{
		Start: Tenant{Most: 2},
		Steps: m.steps,
		Rests: func(t Tenant) bool { return t.InFlight == 0 },
		Properties: []explore.Property[Tenant]{{Name: LimitIsKept, Holds: func(from Tenant, step explore.Step[Tenant]) bool {
			return step.To.Unlimited || step.To.InFlight <= max(from.InFlight, step.To.Most) // a lower limit stops no row in flight
		}}},
	}
}

var workers = [2]string{"worker 1", "worker 2"}

func (m Limit) steps(from Tenant) []explore.Step[Tenant] {
	n := explore.Steps[Tenant]{From: from, Forget: func(*Tenant) {}}
	isLocked := (from.Counts[0] || from.Counts[1]) && m.Without&LocksTenant == 0
	for w, name := range workers {
		switch {
		case from.Counts[w]:
			n.Add(name, "commits its claim", func(t *Tenant) {
				t.InFlight += t.Room[w]
				t.Counts[w], t.Room[w] = false, 0
			})
			n.Chance(name, "dies", func(t *Tenant) { t.Counts[w], t.Room[w] = false, 0 })
		case from.Unaware[w]:
			n.Add(name, "commits its claim", func(t *Tenant) { t.Unaware[w], t.InFlight = false, t.InFlight+1 })
			n.Chance(name, "dies", func(t *Tenant) { t.Unaware[w] = false })
		case from.Unlimited:
			if from.InFlight < 3 {
				n.Chance(name, "claims a row", func(t *Tenant) { t.Unaware[w] = true })
			}
		case !isLocked: // else the claim takes no row of this tenant, and does not wait
			n.Chance(name, "counts what is in flight", func(t *Tenant) {
				t.Counts[w], t.Room[w] = true, t.Most-min(t.Most, t.InFlight)
			})
		}
	}
	if from.InFlight > 0 {
		n.Add("a worker", "settles a row", func(t *Tenant) { t.InFlight-- })
	}
	if !isLocked {
		n.Chance("the owner", "changes the limit", func(t *Tenant) { t.Most = 3 - t.Most })
		if !from.Unlimited || from.Unaware == [2]bool{} || m.Without&WaitsForClaims != 0 {
			n.Chance("the owner", "lifts the limit, or sets the first one", func(t *Tenant) { t.Unlimited = !t.Unlimited })
		}
	}
	return n.Taken
}

const (
	places = 8 // in due order
	window = 4 // rows that a look ahead reads
	// RunPatience is a claim in due order and a look ahead for each window, and two more claims for the look that
	// finds the end.
	RunPatience = 2 * (places/window + 1)
	// NoRunStarves is the promise of [Runs].
	NoRunStarves = "a row of another run, behind the front, waits for no more than a look ahead for each window of rows"
)

// Runs is the lane of one tenant, without some of its guards.
type Runs struct{ Without Guards }

// Queue holds rows at some of its places, and the planner's positions among them.
type Queue struct {
	Crowd, Lone uint8 // bit sets of places: of the rows of a run with many, and of the only row of another run
	Front       uint8 // the place where the next claim in due order begins
	Ahead       uint8 // the place where the next look ahead begins
	Looked      bool  // the last claim looked ahead
	Waits       uint8 // claims while the lone row was behind the front
}

// Explored returns the model with its promise.
func (m Runs) Explored() explore.Model[Queue] {
	return explore.Model[Queue]{
		Steps: m.steps,
		Rests: func(q Queue) bool { return q.Crowd|q.Lone == 0 },
		Properties: []explore.Property[Queue]{explore.Always(NoRunStarves, func(q *Queue) bool {
			return q.Waits <= RunPatience
		})},
	}
}

// steps lets rows commit in any order, also at places that claims in due order have passed.
func (m Runs) steps(q Queue) []explore.Step[Queue] {
	steps := []explore.Step[Queue]{{Who: "lane", What: "claims", To: m.claim(q)}}
	for place := range uint8(places) {
		if (q.Crowd|q.Lone)&(1<<place) != 0 {
			continue
		}
		crowd, lone := q, q
		crowd.Crowd |= 1 << place
		steps = append(steps, explore.Step[Queue]{Who: "the crowd", What: fmt.Sprint("commits a row at place ", place+1), To: crowd, Chance: true})
		if q.Lone == 0 {
			lone.Lone = 1 << place
			steps = append(steps, explore.Step[Queue]{Who: "another run", What: fmt.Sprint("commits a row at place ", place+1), To: lone, Chance: true})
		}
	}
	return steps
}

func (m Runs) claim(q Queue) Queue {
	var took uint8
	if q.Looked = !q.Looked && m.Without&LooksAhead == 0; q.Looked {
		took = m.lookAhead(&q)
	} else {
		took = m.inDueOrder(&q)
	}
	q.Crowd, q.Lone = q.Crowd&^took, q.Lone&^took
	if q.Waits++; q.Lone>>q.Front == 0 { // there is no such row, or it waits for a full scan
		q.Waits = 0
	}
	return q
}

// inDueOrder takes the first row at or behind the front.
func (m Runs) inDueOrder(q *Queue) (took uint8) {
	rows := (q.Crowd | q.Lone) >> q.Front << q.Front
	if rows == 0 {
		if m.Without&ScansAll == 0 {
			q.Front = 0
		}
		return 0
	}
	q.Front = uint8(bits.TrailingZeros8(rows)) + 1
	return rows & -rows
}

// lookAhead takes the lone row, or else the last row of its window. It does not move the front.
func (m Runs) lookAhead(q *Queue) (took uint8) {
	q.Ahead = max(q.Ahead, q.Front)
	rows := (q.Crowd | q.Lone) >> q.Ahead << q.Ahead
	for range window {
		if took = rows & -rows; took == 0 || took == q.Lone {
			break
		}
		rows &^= took
	}
	switch {
	case took == 0 && m.Without&StartsAgain == 0:
		q.Ahead = q.Front
	case took != 0 && (took == q.Lone || m.Without&TakesTheLast == 0):
		q.Ahead = uint8(bits.TrailingZeros8(took)) + 1
		return took
	}
	return 0
}
