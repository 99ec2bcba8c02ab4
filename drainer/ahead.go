package drainer

import (
	"slices"
	"time"
)

const (
	// aCrowd is so many rows in due order, more than of all other runs, that their run keeps others waiting.
	aCrowd = 32
	// crowdsAtOnce bounds the runs that a look ahead passes by.
	crowdsAtOnce = 16
)

// ahead finds the rows of a tenant's other runs behind those of a run that has many. It looks window by window, beside
// the claims in due order: claim.sql bounds the rows that one look reads.
type ahead struct {
	front   majority // of the rows that were claimed in due order
	found   majority // of the rows that looks ahead brought
	crowd   []string // the runs that they pass by, the one of the front first; none while no run keeps others waiting
	cursor  Cursor
	begunAt time.Time // when it was last where the claims in due order are
	next    time.Time // when the next look may come
	wasLast bool      // the tenant's last part was one
}

// plan makes a due tenant's part a look ahead where it is time for one, and never twice in a row.
func (a *ahead) plan(part *Part, now time.Time) {
	a.wasLast = len(a.crowd) > 0 && !a.wasLast && now.After(a.next) && !part.After.IsZero()
	if a.wasLast {
		part.After, part.Ahead, part.Crowd = a.cursor, true, slices.Clone(a.crowd)
	}
}

// looked goes on behind what it found. At the end it starts from the front again, once a second, for what came late or was passed by.
func (a *ahead) looked(part Part, taken Taken, front Cursor, took time.Duration, now time.Time) {
	a.next = now.Add(max(searchInterval, 2*took))
	switch {
	case taken.Found > 0 && taken.Next.Compare(a.cursor) > 0:
		a.cursor = taken.Next
	case taken.Found == 0 && part.After == a.cursor && now.Sub(a.begunAt) > fullScanInterval:
		a.cursor, a.begunAt, a.crowd = front, now, a.crowd[:min(1, len(a.crowd))]
	}
}

func (a *ahead) count(run string, byLook bool) {
	switch {
	case !byLook:
		a.front.count(run)
	case !slices.Contains(a.crowd, run): // else it was the last of its window
		a.found.count(run)
	}
}

// weigh decides whether looks ahead are needed, after some rows were counted.
func (a *ahead) weigh(front Cursor, now time.Time) {
	switch {
	case a.front.rows < aCrowd/2:
		a.crowd = nil
	case a.front.rows >= aCrowd && len(a.crowd) == 0:
		a.crowd, a.cursor, a.begunAt = []string{a.front.run}, front, now
	case a.front.rows >= aCrowd && a.crowd[0] != a.front.run:
		a.crowd = []string{a.front.run}
	case a.found.rows >= aCrowd && !slices.Contains(a.crowd, a.found.run) && len(a.crowd) < crowdsAtOnce:
		a.crowd = append(a.crowd, a.found.run)
	}
}

// majority is the run that more rows belonged to than to all others, lately.
type majority struct {
	run  string
	rows int
}

func (m *majority) count(run string) {
	switch {
	case m.run == run:
		m.rows = min(m.rows+1, 2*aCrowd)
	case m.rows > 0:
		m.rows--
	default:
		m.run, m.rows = run, 1
	}
}
