package drainer

import (
	"slices"
	"time"
)

const (
	// aCrowd is so many rows in due order, more than of all other runs, that their run keeps others waiting.
	aCrowd = 32
	// crowdsAtOnce bounds the fronts of a tenant, and the runs that a look ahead passes by.
	crowdsAtOnce = 16
	// A look reads ten times as many rows as a claim takes, so that it finds other runs before the claims are there.
	leastWindow, mostWindow = 2000, 20_000
)

// front is a place from which a tenant's rows are claimed in due order, up to the next one: the first where they begin,
// and one more for each other run with many rows. They share the tenant's part of a claim, so that its runs take turns.
type front struct {
	id     int
	cursor Cursor
	runs   majority
}

// ahead finds the rows of a tenant's other runs behind those of a run that has many. It looks window by window, beside
// the claims in due order.
type ahead struct {
	isOn    bool     // a run keeps others waiting
	found   majority // of the rows that looks ahead brought
	passed  []string // runs that looks pass by, and that have no front: those of a tenant with a limit in flight
	cursor  Cursor
	begunAt time.Time // when it was last where the claims in due order are
	next    time.Time // when the next look may come
	wasLast bool      // the tenant's last part was one
	fronts  int       // that there were
	turn    int       // which front comes first
}

// parts divides a due tenant's part among its fronts, or makes it a look ahead where it is time for one, and never
// twice in a row. A look has no more than a front: what it brings may be of a single run.
func (t *tenant) parts(part Part, now time.Time) []Part {
	a := &t.ahead
	if a.wasLast = a.isOn && !a.wasLast && now.After(a.next) && !part.After.IsZero(); a.wasLast {
		if a.cursor.Compare(t.fronts[0].cursor) < 0 {
			a.cursor = t.fronts[0].cursor
		}
		part.After, part.Ahead, part.Crowd = a.cursor, min(max(leastWindow, 10*part.Limit), mostWindow), t.passedRuns()
		part.Limit = max(1, part.Limit/(len(t.fronts)+1))
		return []Part{part}
	}
	var parts []Part
	for i, f := range t.fronts {
		own := part
		if own.Limit = (part.Limit + (i+a.turn)%len(t.fronts)) / len(t.fronts); own.Limit == 0 {
			continue
		}
		if i > 0 {
			own.After, own.Front = f.cursor, f.id
		}
		if i+1 < len(t.fronts) {
			own.Before, own.Until = t.fronts[i+1].cursor, t.fronts[i+1].id
		}
		parts = append(parts, own)
	}
	a.turn++
	return rotated(parts, a.turn) // the first ones may have all the bytes
}

// passedRuns lists the runs that looks pass by.
func (t *tenant) passedRuns() []string {
	runs := slices.Clone(t.ahead.passed)
	for _, f := range t.fronts {
		if f.runs.rows >= aCrowd/2 {
			runs = append(runs, f.runs.run)
		}
	}
	return runs
}

// dropFront gives up a front that found less than its part: it has come to where the next one begins, or to the end of
// what is due. It reports whether the tenant may have more.
func (t *tenant) dropFront(at int, part Part) bool {
	if at < 0 || len(t.fronts) == 1 {
		return at < 0
	}
	if part.Before.IsZero() || (at+1 < len(t.fronts) && t.fronts[at+1].id == part.Until) {
		t.fronts = slices.Delete(t.fronts, at, at+1)
	}
	return true
}

// looked goes on behind what it found. At the end it starts from the front again, once a second, for what came late or was passed by.
func (a *ahead) looked(part Part, taken Taken, front Cursor, took time.Duration, now time.Time) {
	a.next = now.Add(max(searchInterval, 2*took))
	switch {
	case taken.Found > 0 && taken.Next.Compare(a.cursor) > 0:
		a.cursor = taken.Next
	case taken.Found == 0 && part.After == a.cursor && now.Sub(a.begunAt) > fullScanInterval:
		a.cursor, a.begunAt, a.passed = front, now, nil
	}
}

func (t *tenant) count(part Part, run string) {
	if part.Ahead > 0 {
		if !slices.Contains(part.Crowd, run) { // else it was the last of its window
			t.ahead.found.count(run)
		}
	} else if at := slices.IndexFunc(t.fronts, func(f front) bool { return f.id == part.Front }); at >= 0 {
		t.fronts[at].runs.count(run)
	}
}

// adjustFronts decides whether looks ahead are needed, and which runs have fronts, after some rows were counted.
func (t *tenant) adjustFronts(now time.Time) {
	a := &t.ahead
	for i := len(t.fronts) - 1; i > 0; i-- {
		own := t.fronts[i].runs
		if t.limited || own.rows < aCrowd/2 || slices.ContainsFunc(t.fronts[:i], func(f front) bool { return f.runs.run == own.run }) {
			t.fronts = slices.Delete(t.fronts, i, i+1)
		}
	}
	first := &t.fronts[0]
	switch {
	case first.runs.rows < aCrowd/2 && len(t.fronts) == 1:
		*a = ahead{fronts: a.fronts}
	case first.runs.rows >= aCrowd && !a.isOn:
		a.isOn, a.cursor, a.begunAt = true, first.cursor, now
	}
	if crowd := t.passedRuns(); !a.isOn || a.found.rows < aCrowd || slices.Contains(crowd, a.found.run) || len(crowd) >= crowdsAtOnce {
		return
	}
	if t.limited { // one part at a time can keep its limit
		a.passed = append(a.passed, a.found.run)
	} else if at, _ := slices.BinarySearchFunc(t.fronts, a.cursor, func(f front, place Cursor) int { return f.cursor.Compare(place) }); at > 0 || first.cursor == a.cursor {
		a.fronts++
		t.fronts = slices.Insert(t.fronts, max(1, at), front{a.fronts, a.cursor, a.found})
	}
	a.found = majority{}
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
