package drainer

import (
	"slices"
	"time"
)

const (
	// aCrowd is by how many rows a run must outnumber all other runs, in due order, to count as keeping them waiting.
	aCrowd = 32
	// crowdsAtOnce bounds the fronts of a tenant, and the runs that a look ahead skips.
	crowdsAtOnce = 16
	// A look ahead reads ten times as many rows as a claim takes, so that it reaches other runs before the claims do.
	leastWindow, mostWindow = 2000, 20_000
)

// front is a place from which a tenant's rows are claimed in due order, up to the place of the next front. The first front
// is where the due rows begin. Each other run with many rows has a further one. The fronts share the tenant's part of a
// claim, so that its runs take turns.
type front struct {
	id     int
	cursor Cursor
	runs   majority
}

// ahead finds the rows of a tenant's other runs behind those of a run that has many. It looks through them window by
// window, between the claims in due order.
type ahead struct {
	isOn    bool     // a run keeps others waiting
	found   majority // the run of most rows that looks ahead brought
	passed  []string // runs that looks skip although they have no front: only for a tenant with a limit in flight
	cursor  Cursor
	begunAt time.Time // when it last started from the first front
	next    time.Time // when the next look ahead may come
	wasLast bool      // the tenant's last part was a look ahead
	fronts  int       // how many were made, which numbers them
	turn    int       // which front comes first in the next claim
}

// parts divides a due tenant's part among its fronts, or makes it a look ahead if one is due. Two looks ahead never
// follow each other. A look ahead gets no more rows than a front, since all that it brings may belong to a single run.
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
	return rotated(parts, a.turn) // the first parts may use up all bytes of the claim
}

// passedRuns lists the runs that looks ahead skip.
func (t *tenant) passedRuns() []string {
	runs := slices.Clone(t.ahead.passed)
	for _, f := range t.fronts {
		if f.runs.rows >= aCrowd/2 {
			runs = append(runs, f.runs.run)
		}
	}
	return runs
}

// dropFront removes a front that found fewer rows than its part allowed: it has reached the next front, or the end of
// the due rows. It reports whether the tenant may have more due rows.
func (t *tenant) dropFront(at int, part Part) bool {
	if at < 0 || len(t.fronts) == 1 {
		return at < 0
	}
	if part.Before.IsZero() || (at+1 < len(t.fronts) && t.fronts[at+1].id == part.Until) {
		t.fronts = slices.Delete(t.fronts, at, at+1)
	}
	return true
}

// looked moves the cursor behind the rows that a look ahead found. At the end it starts from the first front again, once
// a second, for rows that came late or were skipped.
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
		if !slices.Contains(part.Crowd, run) { // a skipped run's row is there only as the last of its window
			t.ahead.found.count(run)
		}
	} else if at := slices.IndexFunc(t.fronts, func(f front) bool { return f.id == part.Front }); at >= 0 {
		t.fronts[at].runs.count(run)
	}
}

// adjustFronts decides, after rows were counted, whether looks ahead are needed and which runs have fronts.
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
	if t.limited { // only a single part can respect a limit in flight
		a.passed = append(a.passed, a.found.run)
	} else if at, _ := slices.BinarySearchFunc(t.fronts, a.cursor, func(f front, place Cursor) int { return f.cursor.Compare(place) }); at > 0 || first.cursor == a.cursor {
		a.fronts++
		t.fronts = slices.Insert(t.fronts, max(1, at), front{a.fronts, a.cursor, a.found})
	}
	a.found = majority{}
}

// majority is the run to which most of the last rows belong, found by majority voting in constant memory.
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
