package drainer

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	fullScanInterval = time.Second
	// fullScanShare limits full scans to that fraction of a lane's time: each one
	// reads every dead index entry that a held snapshot keeps.
	fullScanShare = 20
	// maxScanPause keeps one slow batch from hiding rows for minutes.
	maxScanPause = 10 * time.Second

	// tenantsAtOnce bounds the parts of a claim, each of which is an index scan: of the tenants that have due
	// rows, of those that lately had, and of the gaps between them.
	tenantsAtOnce = 64
	// searchInterval is how often a lane that has enough to do looks for tenants that have rows again.
	searchInterval = 20 * time.Millisecond
)

// scan is where a lane looks next, and for whose rows. Tenants that have due rows share each claim by their
// weights. The others are searched for: an index scan finds the first of them that have rows, however many there are.
type scan struct {
	tenants  []*tenant     // by their ids: all that are hungry, and of the others those that had rows last
	searchAt time.Time     // when the next search may come, while one is hungry
	searched bool          // the last claim did
	plain    time.Duration // what a claim takes that does not search
	gap      int           // which gap between the tenants the next search begins with
	turn     int           // which of its parts comes first

	hungry        bool // a tenant is
	lookRequested bool // one more look before waiting
	nothing       bool // the last look was a full scan of everything and found nothing due
	held          bool // so was the last full scan, but for rows that a tenant's limit keeps; none were found since
	hasBegun      bool
}

// tenant is one of which rows were found. Following its cursor skips the dead index entries
// of earlier claims. A full scan also finds what landed behind the cursor: rows
// released, reaped or committed late.
type tenant struct {
	id      int16
	weight  int
	credit  float64   // rows that it is owed, or below 0 had too many
	fronts  []front   // at least one, in due order
	allowed time.Time // the next full scan may come
	overdue time.Time // the next full scan must come
	hungry  bool      // the last look found all it asked for
	limited bool      // it has a limit in flight
	foundAt time.Time
	ahead   ahead
}

// again reports whether the next look need not wait.
func (s *scan) again() bool { return s.hungry || s.lookRequested || !s.hasBegun }

// requestLook asks for one more look before the lane waits.
func (s *scan) requestLook() { s.lookRequested = true }

// restart forgets where the lane was: a look that failed may have left rows that the
// cursors have passed since.
func (s *scan) restart() {
	for _, t := range s.tenants {
		t.fronts, t.credit, t.ahead = make([]front, 1), 0, ahead{}
	}
	s.lookRequested, s.nothing, s.held = true, false, false
}

// failed also spaces searches: one that fails late would be repeated after each claim that does not search.
func (s *scan) failed(claim Claim, took time.Duration, now time.Time) {
	s.restart()
	if slices.ContainsFunc(claim.Parts, func(part Part) bool { return !part.isOfOne() }) {
		s.spaceSearches(true, false, took, now)
	}
}

// rescan allows the next look to be a full scan, however long the last one took. What a limit keeps may be kept for long,
// by other workers: until then full scans come as seldom as ever.
func (s *scan) rescan() {
	if s.held {
		return
	}
	for _, t := range s.tenants {
		t.allowed = time.Time{}
	}
}

// plan says whose rows the claim takes. A search comes first, so that it finds room, and never twice in a row
// beside hungry tenants, so that they find some too.
func (s *scan) plan(claim *Claim, now time.Time) {
	s.lookRequested = false
	s.searched = !s.hungry || (!s.searched && now.After(s.searchAt))
	if s.searched {
		s.search(claim, now)
		s.searchAt = now.Add(searchInterval)
	}
	s.divide(claim, now)
}

// search asks for the tenants that are not hungry: each of those known by its cursor, the others by the gaps between.
// Beside hungry ones it has half of the claim.
func (s *scan) search(claim *Claim, now time.Time) {
	var known, gaps []Part
	next := 0
	for _, t := range s.tenants {
		if next < int(t.id) {
			gaps = append(gaps, Part{First: int16(next), Last: t.id - 1})
		}
		next = int(t.id) + 1
		if !t.hungry {
			known = append(known, t.part(claim, 0, now))
		}
	}
	if next <= LastTenant {
		gaps = append(gaps, Part{First: int16(next), Last: LastTenant})
	}
	gaps = rotated(gaps, s.gap)[:min(len(gaps), tenantsAtOnce+1)]
	s.gap += len(gaps)
	for i := range gaps {
		gaps[i].Limit = claim.Limit
		if s.hungry {
			gaps[i].Limit = max(1, claim.Limit/4)
		}
	}
	for i := range known {
		known[i].Limit = claim.Limit
		if s.hungry {
			known[i].Limit = max(1, claim.Limit/4/len(known))
		}
	}
	claim.Parts = rotated(append(known, gaps...), s.turn) // each time another one comes first: they may fill the claim
	s.turn++
}

func rotated(parts []Part, by int) []Part {
	if len(parts) == 0 {
		return parts
	}
	by %= len(parts)
	return slices.Concat(parts[by:], parts[:by])
}

// divide is a deficit round robin: each hungry tenant is owed its share of every claim, and the claim goes to those
// that are owed most. What one of them leaves is theirs to whom the next claim goes.
func (s *scan) divide(claim *Claim, now time.Time) {
	var due []*tenant
	weights, credits := 0, 0.0
	for _, t := range s.tenants {
		if t.hungry {
			due, weights, credits = append(due, t), weights+t.weight, credits+t.credit
		}
	}
	for _, t := range due {
		t.credit += (float64(claim.Limit) - credits) * float64(t.weight) / float64(weights)
	}
	slices.SortStableFunc(due, func(a, b *tenant) int { return cmp.Compare(b.credit, a.credit) })
	due = due[:min(len(due), tenantsAtOnce)]
	given, left := make([]int, len(due)), claim.Limit
	weights = 0
	for i, t := range due {
		given[i] = min(left, max(0, int(math.Floor(t.credit))))
		left -= given[i]
		weights += t.weight
	}
	for len(due) > 0 && left > 0 { // others are not in this claim, or the shares were rounded down
		rest := left
		for i, t := range due {
			more := min(left, max(1, rest*t.weight/weights))
			given[i] += more
			left -= more
		}
	}
	for i, t := range due {
		// One that is owed less than a row has the place of another that turns out to have none.
		given[i] = max(1, given[i])
		for _, part := range t.parts(t.part(claim, given[i], now), now) {
			t.credit -= float64(part.Limit)
			claim.Parts = append(claim.Parts, part)
		}
	}
}

func (t *tenant) part(claim *Claim, limit int, now time.Time) Part {
	part := Part{First: t.id, Last: t.id, Limit: limit, After: t.from(now), Front: t.fronts[0].id}
	claim.Rescans = claim.Rescans || part.After.IsZero()
	return part
}

func (t *tenant) from(now time.Time) Cursor {
	if now.After(t.overdue) || (!t.hungry && now.After(t.allowed)) {
		t.overdue = now.Add(fullScanInterval) // a look that begins beside this one need not be another full scan
		return Cursor{}
	}
	return t.fronts[0].cursor
}

func (s *scan) looked(claim Claim, reply ClaimReply, now time.Time) {
	parts := claim.Parts
	if len(parts) == 0 {
		parts = []Part{{Last: LastTenant, Limit: claim.Limit}}
	}
	// The last part with rows, and those behind it, may have more: they are due until a claim shows that they are not.
	last := len(parts)
	if reply.Found == claim.Limit || (claim.Bytes > 0 && reply.Bytes >= claim.Bytes) {
		for last--; last > 0 && !slices.ContainsFunc(reply.Of, func(taken Taken) bool { return taken.Part == last }); {
			last--
		}
	}
	searched, cut, width := false, false, 0
	for i, part := range parts {
		searched, cut = searched || !part.isOfOne(), cut || (i > last && !part.isOfOne())
		if i == 0 || parts[i-1].First != part.First {
			width += int(part.Last) - int(part.First) + 1
		}
		var of []Taken
		for _, taken := range reply.Of {
			if taken.Part == i {
				of = append(of, taken)
			}
		}
		if at, known := s.find(part.First); known && part.isOfOne() && len(of) == 0 {
			s.tenants[at].looked(part, Taken{}, i >= last, reply.Took, now)
		}
		for _, taken := range of {
			// Of several each may have found all that its share of the part was.
			s.tenant(taken).looked(part, taken, i >= last || len(of) > 1, reply.Took, now)
		}
	}
	s.count(parts, reply)
	for _, t := range s.tenants {
		t.adjustFronts(now)
	}
	isEmpty := claim.IsFull() && width > LastTenant && reply.Found == 0
	s.nothing = isEmpty && !reply.Held
	s.held = reply.Found == 0 && (s.held || isEmpty) && !s.nothing
	s.hasBegun = true
	s.spaceSearches(searched, cut, reply.Took, now)
	s.hungry = slices.ContainsFunc(s.tenants, func(t *tenant) bool { return t.hungry })
	s.lookRequested = s.lookRequested || (!s.hungry && width <= LastTenant) // it has not looked at everything
	s.forget()
}

// spaceSearches limits searches to a third of the time where they take long, as a claim without one shows: each reads the
// dead index entries that a held snapshot keeps. A single claim may also have carried other work, and counts as at most
// twice what was known. A search that found no room is tried again at once.
func (s *scan) spaceSearches(searched, cut bool, took time.Duration, now time.Time) {
	switch next := now.Add(2 * (took - s.plain)); {
	case !searched:
		s.plain = min(took, cmp.Or(2*s.plain, took))
	case cut:
		s.searchAt = time.Time{}
	case next.After(s.searchAt):
		s.searchAt = next
	}
}

// count takes note of whose runs the rows are.
func (s *scan) count(parts []Part, reply ClaimReply) {
	for _, row := range reply.Rows {
		if at, known := s.find(row.Tenant); known {
			s.tenants[at].count(parts[row.Part], row.Tuple.AgentRunID)
		}
	}
}

func (t *tenant) looked(part Part, taken Taken, isHungry bool, took time.Duration, now time.Time) {
	if part.Ahead > 0 { // it says nothing of the rows in due order
		t.credit += float64(part.Limit - taken.Found)
		t.ahead.looked(part, taken, t.fronts[0].cursor, took, now)
		return
	}
	at := slices.IndexFunc(t.fronts, func(f front) bool { return f.id == part.Front })
	isFull := part.After.IsZero()
	if isFull {
		pause := min(fullScanShare*took, maxScanPause)
		t.allowed = now.Add(pause)
		t.overdue = now.Add(max(fullScanInterval, pause))
	}
	if taken.Found > 0 {
		t.foundAt, t.limited = now, taken.Limited
		// With two claims in flight the cursor only moves forward. It does not pass over
		// rows that a full scan has yet to go through.
		if at >= 0 && (isFull || (part.After.Compare(t.fronts[at].cursor) <= 0 && taken.Next.Compare(t.fronts[at].cursor) > 0)) {
			t.fronts[at].cursor = taken.Next
		}
	}
	if t.hungry && part.isOfOne() {
		t.credit += float64(part.Limit - taken.Found)
	}
	if t.hungry = isHungry || taken.Found == part.Limit || t.dropFront(at, part); !t.hungry {
		t.credit = 0
	}
}

func (s *scan) find(id int16) (at int, known bool) {
	return slices.BinarySearchFunc(s.tenants, id, func(t *tenant, id int16) int { return cmp.Compare(t.id, id) })
}

func (s *scan) tenant(taken Taken) *tenant {
	i, known := s.find(taken.Tenant)
	if !known {
		s.tenants = slices.Insert(s.tenants, i, &tenant{id: taken.Tenant, fronts: make([]front, 1)})
	}
	s.tenants[i].weight = max(1, taken.Weight)
	return s.tenants[i]
}

// forget keeps few tenants that are not hungry: each look asks for each of them.
func (s *scan) forget() {
	var rest []*tenant
	for _, t := range s.tenants {
		if !t.hungry {
			rest = append(rest, t)
		}
	}
	if len(rest) <= tenantsAtOnce {
		return
	}
	slices.SortFunc(rest, func(a, b *tenant) int { return b.foundAt.Compare(a.foundAt) })
	for _, t := range rest[tenantsAtOnce:] {
		t.foundAt = time.Time{}
	}
	s.tenants = slices.DeleteFunc(s.tenants, func(t *tenant) bool { return t.foundAt.IsZero() })
}
