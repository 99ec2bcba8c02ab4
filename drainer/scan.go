package drainer

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	fullScanInterval = time.Second
	// fullScanShare limits full scans to one twentieth of a lane's time. A full scan reads every
	// dead index entry that an old snapshot keeps from vacuum.
	fullScanShare = 20
	// maxScanPause bounds the pause after a slow batch, in which rows behind the cursor are not found.
	maxScanPause = 10 * time.Second

	// tenantsAtOnce bounds the parts of a claim for each of three kinds: tenants with due rows, tenants that
	// recently had some, and the gaps between these ids. Each part is an index scan.
	tenantsAtOnce = 64
	// searchInterval is how often a busy lane looks for further tenants with due rows.
	searchInterval = 20 * time.Millisecond
)

// scan decides where a lane looks next, and for which tenants' rows. Tenants that are known to have due rows share each
// claim by their weights. The others are searched for: an index scan finds the next tenants with rows, however many
// tenants there are. A tenant is called hungry while it may have more due rows than were claimed.
type scan struct {
	tenants  []*tenant     // sorted by id: all hungry ones, and of the others those that had rows last
	searchAt time.Time     // when the next search may come while a tenant is hungry
	searched bool          // the last claim was a search
	plain    time.Duration // how long a claim without a search takes
	gap      int           // the gap between known tenants with which the next search begins
	turn     int           // the part that comes first in the next search

	hungry        bool // at least one tenant is
	lookRequested bool // look once more before waiting
	nothing       bool // the last look was a full scan of everything and found no due row
	held          bool // the last full scan found only rows that a tenant's limit holds back, and none were found since
	hasBegun      bool
}

// tenant is a tenant of which rows were found. Looks that follow its cursor skip the dead index
// entries of earlier claims. A full scan also finds rows behind the cursor: those that were
// released, recovered or committed late.
type tenant struct {
	id      int16
	weight  int
	credit  float64   // rows that it may still claim; negative if it had more than its share
	fronts  []front   // at least one, in due order
	allowed time.Time // from when on a full scan may come
	overdue time.Time // from when on a full scan must come
	hungry  bool      // the last look found as many rows as it asked for
	limited bool      // it has a limit in flight
	foundAt time.Time
	ahead   ahead
}

// again reports whether the next look should come at once.
func (s *scan) again() bool { return s.hungry || s.lookRequested || !s.hasBegun }

// requestLook asks for one more look before the lane waits.
func (s *scan) requestLook() { s.lookRequested = true }

// restart moves all cursors back to the beginning: after a failed look, rows may be left behind them.
func (s *scan) restart() {
	for _, t := range s.tenants {
		t.fronts, t.credit, t.ahead = make([]front, 1), 0, ahead{}
	}
	s.lookRequested, s.nothing, s.held = true, false, false
}

// failed also delays the next search: a search that runs into the timeout would otherwise be repeated with
// every second claim.
func (s *scan) failed(claim Claim, took time.Duration, now time.Time) {
	s.restart()
	if slices.ContainsFunc(claim.Parts, func(part Part) bool { return !part.isOfOne() }) {
		s.spaceSearches(claim, true, false, took, now)
	}
}

// rescan allows the next look to be a full scan, however long the last one took. It does nothing while a tenant's limit
// holds rows back: that can last long, since the limit counts the rows of other workers, too.
func (s *scan) rescan() {
	if s.held {
		return
	}
	for _, t := range s.tenants {
		t.allowed = time.Time{}
	}
}

// plan says which tenants' rows the claim takes. The parts of a search come first, so that there is room left for them.
// While tenants are hungry, two searches never follow each other, so that these tenants find room, too.
func (s *scan) plan(claim *Claim, now time.Time) {
	s.lookRequested = false
	s.searched = !s.hungry || (!s.searched && now.After(s.searchAt))
	if s.searched {
		s.search(claim, now)
	}
	s.divide(claim, now)
}

// searchesBeside reports whether a search of its own is worth a claim: while tenants are hungry, a search within their
// claims would wait for these, which may be large. It needs a second tenant, since most installations have only one.
func (s *scan) searchesBeside() bool { return s.hungry && len(s.tenants) > 1 }

// search asks for the rows of tenants that are not hungry: of each known one behind its cursor, and of the unknown ones by
// the gaps between the known ids. Within the claim of hungry tenants, a search gets half of it.
func (s *scan) search(claim *Claim, now time.Time) {
	s.searchAt = now.Add(searchInterval)
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
		if claim.IsSearch { // if it asked for one row, each tenant with a single row would count as hungry
			known[i].Limit = max(1, claim.Limit/4)
		}
	}
	claim.Parts = rotated(append(known, gaps...), s.turn) // the first parts may fill the claim, so they take turns
	s.turn++
}

func rotated(parts []Part, by int) []Part {
	if len(parts) == 0 {
		return parts
	}
	by %= len(parts)
	return slices.Concat(parts[by:], parts[:by])
}

// divide is a deficit round robin: each claim credits every hungry tenant with its share, and the tenants with the most
// credit get the rows. A tenant that finds fewer rows than it was given loses the rest of its credit to the others.
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
	for len(due) > 0 && left > 0 { // rows are left, since shares are rounded down and some tenants are not in this claim
		rest := left
		for i, t := range due {
			more := min(left, max(1, rest*t.weight/weights))
			given[i] += more
			left -= more
		}
	}
	for i, t := range due {
		// A tenant with less than one row of credit still asks for one: another tenant may turn out to have none.
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
		t.overdue = now.Add(fullScanInterval) // a concurrent look need not be another full scan
		return Cursor{}
	}
	return t.fronts[0].cursor
}

func (s *scan) looked(claim Claim, reply ClaimReply, now time.Time) {
	parts := claim.Parts
	if len(parts) == 0 {
		parts = []Part{{Last: LastTenant, Limit: claim.Limit}}
	}
	// A full claim is cut off at the last part that has rows. That part and the later ones may have more, and count as
	// hungry until a claim shows otherwise.
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
			// Where several tenants share a part, each may have more rows than its share.
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
	s.spaceSearches(claim, searched, cut, reply.Took, now)
	s.hungry = slices.ContainsFunc(s.tenants, func(t *tenant) bool { return t.hungry })
	s.lookRequested = s.lookRequested || (!s.hungry && width <= LastTenant) // this claim did not look at all tenants
	s.forget()
}

// spaceSearches limits slow searches to a third of the time: each reads the dead index entries that an old snapshot keeps.
// A search is slow compared with a claim without one. That comparison may rise at most twofold with each claim, since a
// single claim may also have carried other work. A search of its own carries none. A search that was cut off by a full
// claim is repeated at once.
func (s *scan) spaceSearches(claim Claim, searched, cut bool, took time.Duration, now time.Time) {
	next := now.Add(2 * (took - s.plain))
	if claim.IsSearch {
		next = now.Add(2 * took)
	}
	switch {
	case !searched:
		s.plain = min(took, cmp.Or(2*s.plain, took))
	case cut:
		s.searchAt = time.Time{}
	case next.After(s.searchAt):
		s.searchAt = next
	}
}

// count tells each tenant the runs of its claimed rows.
func (s *scan) count(parts []Part, reply ClaimReply) {
	for _, row := range reply.Rows {
		if at, known := s.find(row.Tenant); known {
			s.tenants[at].count(parts[row.Part], row.Tuple.AgentRunID)
		}
	}
}

func (t *tenant) looked(part Part, taken Taken, isHungry bool, took time.Duration, now time.Time) {
	if part.Ahead > 0 { // a look ahead says nothing about the rows in due order
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
		// With two claims in flight the cursor only moves forward, and never past rows that a
		// full scan has not read yet.
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

// forget bounds the known tenants that are not hungry, since each search has a part for each of them.
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
