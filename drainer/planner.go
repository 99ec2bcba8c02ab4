package drainer

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	// linger is how long a lane gathers outcomes for a batch while more dispatches are running.
	linger = 5 * time.Millisecond
	// pollInterval bounds the wait for rows that no notification announced.
	pollInterval = 250 * time.Millisecond
	// fullBatch is the most outcomes that one batch settles. A larger batch is hardly cheaper a row.
	fullBatch = 1000
	// batchesAtOnce is how many of a lane's batches may claim, and how many may settle, at
	// the same time: while one waits for its commit or is being read, the database has
	// another one to work on.
	batchesAtOnce = 2
	// batchesOfWork is how many batches of rows are claimed ahead: the dispatchers work on one
	// batch of rows while the next claim is under way.
	batchesOfWork = 2
	// maxPrefetch bounds the rows that wait in memory for a free dispatcher, and
	// maxPrefetchBytes their payloads.
	maxPrefetch      = 1750
	maxPrefetchBytes = 16 << 20
	// searchRows bounds the rows of a search beside large claims. Its rows may exceed the room, which those claims
	// have taken.
	searchRows = 64
	// maxClaimBytes bounds the payloads of one claim, so that a link of 4 Mbit/s carries them
	// within batchTimeout. With minClaimBytes a claim returns a single row.
	maxClaimBytes, minClaimBytes = 4 << 20, 1 << 9
)

// planner decides what a lane claims next, and when. It has no clock and does no I/O:
// the lane gives it the time and its load, and reports what each claim found.
type planner struct {
	claim      Claim // what all claims of the lane have in common
	isDetour   bool  // the fallback serves these rows, so the provider's own lane marks it idle
	prefetches bool  // claimed rows may wait for a free dispatcher

	scan         scan
	idle         idleness
	prefetch     int       // rows to claim beyond the free slots
	payloadBytes int       // of one payload, on average over the newest claim
	claimBytes   int       // bytes that the next claim may bring
	triedAt      time.Time // when an operation was tried last: its lane may be empty
}

func newPlanner(route route, own, server dispatch.Provider) planner {
	// With a fallback, each of the two providers may act once under the same key.
	once := actsOnce(own) || actsOnce(server) || own.Fallback != ""
	return planner{
		claim:      Claim{Provider: route.provider, Server: route.server, Fallback: own.Fallback, ActsOnce: once},
		isDetour:   route.isDetour(),
		prefetches: !route.isDetour() && mayPrefetch(server), // the own provider may soon serve the rows of a detour again
		claimBytes: maxClaimBytes,
	}
}

// mayPrefetch reports whether rows may be claimed before a dispatcher is free. If its
// worker dies, a claimed row must be taken as sent, and such a row of a non-idempotent
// tool needs a human. Under a rate limit prefetched rows would only wait.
func mayPrefetch(p dispatch.Provider) bool {
	if p.RateLimit.PerSecond > 0 {
		return false
	}
	return !actsOnce(p)
}

// actsOnce reports whether the provider has a tool that repeats its effect.
func actsOnce(p dispatch.Provider) bool {
	for _, policy := range p.Tools {
		if policy.Class == dispatch.NonIdempotent {
			return true
		}
	}
	return false
}

// load is a lane's work in hand at one moment, and what its provider lets through.
type load struct {
	now          time.Time
	stopping     bool
	outstanding  int  // claimed rows whose outcomes the lane has not collected
	settled      int  // collected outcomes that no batch has taken
	emptied      int  // claims that a batch has to finish
	claiming     int  // batches under way that claim
	claimingRows int  // rows that these may bring
	settling     int  // batches under way that settle
	isSearching  bool // a search is under way beside these batches
	isCommitFree bool // the committer takes a batch at once, so it would not queue behind those of other lanes
	isShared     bool // other workers serve the provider too
	isFailing    bool // a batch has failed, and none has succeeded since
	reclaimsNext bool // it is time to look for claims whose reply was lost

	isBarred  bool          // rows may be due, and none of them may be sent for now
	passage   passage       // what the breaker of the serving provider lets through
	isProbed  bool          // a probe of this lane is under way
	operation string        // whose breaker may be tried; empty for none
	probeFor  time.Duration // how long a probe may take
	slots     int           // dispatches that this worker may have under way at the provider
	budget    int           // dispatches that the provider's rate allows now
	budgetIn  time.Duration // when it allows the next one; 0 if it does now
}

// isQuiet reports that no batch is under way, except perhaps a search.
func (l load) isQuiet() bool { return l.claiming == 0 && l.settling == 0 }

// mayBegin forbids a second concurrent batch in two cases. After a failure, or before a
// reclaim, the lane must first know the results of all batches under way, also that of a
// search. Where several workers share the provider's rows, concurrent claims would skip each
// other's locked rows.
func (l load) mayBegin() bool {
	if l.isFailing || l.reclaimsNext {
		return l.isQuiet() && !l.isSearching
	}
	return l.isQuiet() || !l.isShared
}

// maySettle allows a second concurrent batch only if that batch is full. Fewer outcomes wait
// for the next batch.
func (p *planner) maySettle(l load) bool {
	return l.mayBegin() && (l.isQuiet() || (l.settling < batchesAtOnce && l.settled >= fullBatch))
}

func (p *planner) mayClaim(l load) bool {
	return l.mayBegin() && (l.isQuiet() || (l.claiming < batchesAtOnce && p.scan.hungry && p.allowance(l).rows >= fullBatch/2))
}

// searchIn is how long the lane waits before it searches beside its other claims. It reports false if the lane plans no
// such search: without a large claim under way, the next claim comes soon and searches itself. None begins while more
// rows or bytes wait than may be prefetched, so the rows of one search at most exceed these bounds.
func (p *planner) searchIn(l load) (wait time.Duration, searches bool) {
	waiting := l.outstanding + l.claimingRows - l.slots
	searches = p.prefetches && p.scan.searchesBeside() && l.passage == passRows && l.isCommitFree && l.claimingRows >= fullBatch/2 &&
		!l.isSearching && !l.stopping && !l.isBarred && !l.isFailing && !l.reclaimsNext &&
		waiting <= maxPrefetch && waiting*p.payloadBytes <= maxPrefetchBytes
	return max(0, p.scan.searchAt.Sub(l.now)), searches
}

func (p *planner) maySearch(l load) bool {
	wait, searches := p.searchIn(l)
	return searches && wait == 0
}

// isBatchDue reports whether the next batch should start now, because waiting would not fill it further.
func (p *planner) isBatchDue(l load) bool {
	if !l.isQuiet() || !l.mayBegin() {
		return p.maySettle(l) || p.mayClaim(l) || p.maySearch(l)
	}
	return l.settled >= fullBatch || (l.settled > 0 && l.outstanding == 0)
}

// wait is how long the lane waits for outcomes or a notification before its next batch.
func (p *planner) wait(l load) time.Duration {
	allowed := p.allowance(l)
	switch {
	case !l.isQuiet() || !l.mayBegin():
		if wait, searches := p.searchIn(l); searches {
			return min(wait, pollInterval)
		}
		return pollInterval
	case l.settled > 0 || l.emptied > 0:
		return linger
	case allowed.rows == 0:
		return allowed.wait
	case p.scan.again() && l.outstanding > 0:
		return linger
	case p.scan.again():
		return 0
	}
	return p.idle.wait(l.now)
}

// allowance is how many rows a lane may claim with its next batch. If it may claim none,
// wait says when to ask again.
type allowance struct {
	rows     int
	probeFor time.Duration // if above 0, the claim takes one row, as a probe of the provider
	wait     time.Duration
}

// allowance leaves out rows that could not be sent soon: if its worker dies, a claimed row
// must be taken as sent.
func (p *planner) allowance(l load) allowance {
	nothing := allowance{wait: pollInterval}
	if l.stopping || l.isBarred {
		return nothing
	}
	room := p.room(l)
	if l.passage == passRows {
		wait := pollInterval
		if l.budgetIn > 0 {
			wait = min(l.budgetIn, pollInterval)
		}
		return allowance{rows: min(room, max(0, l.budget-l.claimingRows)), wait: wait}
	}
	if l.isProbed {
		return nothing
	}
	return allowance{rows: min(1, room), probeFor: l.probeFor, wait: pollInterval}
}

// room is how many more rows the lane may hold: one for each dispatch slot, and the prefetched ones.
func (p *planner) room(l load) int {
	if l.slots == 0 {
		return 0
	}
	return max(0, l.slots+p.prefetch-l.outstanding-l.claimingRows)
}

// nextSearch asks for rows of tenants that are not hungry.
func (p *planner) nextSearch(now time.Time) Claim {
	claim := p.claim
	claim.Limit, claim.Bytes, claim.IsSearch = searchRows, p.claimBytes, true
	p.scan.search(&claim, now)
	return claim
}

// nextClaim asks for no rows where none may be claimed.
func (p *planner) nextClaim(l load) Claim {
	allowed := p.allowance(l)
	claim := p.claim
	claim.Limit, claim.Bytes, claim.ProbeFor = allowed.rows, p.claimBytes, allowed.probeFor
	if claim.Limit == 0 {
		return claim
	}
	if l.passage == passRows && l.operation != "" && l.now.Sub(p.triedAt) >= pollInterval {
		p.triedAt = l.now
		claim.Operation, claim.Limit, claim.ProbeFor = l.operation, 1, l.probeFor
		return claim
	}
	if claim.ProbeFor > 0 {
		p.scan.lookRequested = false // a probe ignores the cursors: the row that it may take can lie behind one
	} else {
		if p.claim.LooksLast && l.outstanding == 0 {
			p.scan.rescan() // before a lane that drains once ends, it scans everything
		}
		p.scan.plan(&claim, l.now)
	}
	if !p.isDetour { // the provider's own lane tells producers whether to notify
		claim.Idle = p.idle.mark(l.now)
	}
	return claim
}

// claimed records the reply of a claim that was started at begun.
func (p *planner) claimed(claim Claim, begun, now time.Time, reply ClaimReply) {
	bytes := 0
	for _, row := range reply.Rows {
		bytes += len(row.Payload)
	}
	if claim.IsSearch { // its few rows say little of the other claims' size, and nothing of an idle lane
		p.payloadBytes = max(p.payloadBytes, bytes/max(1, len(reply.Rows)))
		p.scan.looked(claim, reply, now)
		return
	}
	if now.Sub(begun) < batchTimeout/4 { // a claim of twice the size ends in time, too
		p.claimBytes = min(maxClaimBytes, 2*p.claimBytes)
	}
	if len(reply.Rows) > 0 {
		p.payloadBytes = bytes / len(reply.Rows)
	}
	if claim.Operation != "" {
		p.scan.requestLook() // this claim looked only for the operation's parked row
		return
	}
	p.scan.looked(claim, reply, now)
	found := reply.Found
	if p.scan.hungry {
		found = max(1, found) // other tenants have due rows
	}
	if !p.isDetour && p.idle.looked(claim.Idle, begun, now, found) {
		p.scan.requestLook()
	}
}

// claimFailed halves the bytes of the next claim: the link may be too slow for the size that failed.
func (p *planner) claimFailed(claim Claim, took time.Duration, now time.Time) {
	p.scan.failed(claim, took, now)
	if !claim.IsSearch {
		p.claimBytes = max(minClaimBytes, claim.Bytes/2)
	}
}

// settled plans how many rows to claim ahead, from how many the last batch settled.
func (p *planner) settled(rows int, passage passage) {
	p.prefetch = 0
	if p.prefetches && passage == passRows {
		p.prefetch = min(batchesOfWork*rows, maxPrefetch, maxPrefetchBytes/max(1, p.payloadBytes))
	}
}

const (
	// busyRows rows, found by one look or by several in a row, make a stream of work. During a
	// stream producers do not notify, since that would only slow them down. Several looks count
	// together, because with slow commits a single look finds few rows.
	busyRows = 8
	// streamRest is how long a stream may bring no row before it counts as over: all its producers
	// may be waiting for the disk. Until then the lane polls.
	streamRest = 20 * time.Millisecond
	// lookInterval is the time between looks during such a rest. It is also the first pause within lookout.
	lookInterval = 2 * time.Millisecond
	// lookout is how long a lane looks again and again, at growing intervals, after a notification
	// or a row. Of several producers that commit at about the same time only one notifies, and
	// the others may commit a moment later. The last look comes before twice this time.
	lookout = 10 * time.Millisecond
	// believed is how many notifications in a row may turn out to be without a row before the lane
	// obeys only one in each unfoundedInterval. A few are normal: other replicas claim the rows first.
	believed          = 16
	unfoundedInterval = 10 * time.Millisecond
)

// idleness decides whether producers notify this lane. They do so only while the lane waits.
type idleness struct {
	until    time.Time // when producers stop notifying, by this process's clock
	found    int       // rows since the last look that found nothing
	busyAt   time.Time // when the last look in a stream found something
	rests    bool      // the stream has brought no row since, for less than streamRest
	activeAt time.Time // when a notification came or a look found a row

	unfounded int       // notifications since a look last found a row
	wokenAt   time.Time // when the last notification came
}

func (i *idleness) mark(now time.Time) IdleMark {
	left := i.until.Sub(now)
	switch {
	case i.isStream() && left > 0:
		return IdleBusy
	case i.isStream() || left > IdleFor/2:
		return IdleUnchanged
	}
	return IdleWaiting
}

func (i *idleness) isStream() bool { return i.found >= busyRows || i.rests }

// wait is how long to wait for the next look if no notification comes.
func (i *idleness) wait(now time.Time) time.Duration {
	if i.isStream() {
		return lookInterval
	}
	if since := now.Sub(i.activeAt); since < lookout {
		return max(lookInterval, since)
	}
	return pollInterval
}

// woken records a notification. Another replica may have claimed its row by now. After more than
// believed notifications without a row, each further one causes a single look.
func (i *idleness) woken(now time.Time) {
	i.wokenAt = now
	if i.unfounded++; i.unfounded <= believed {
		i.activeAt = now
	}
}

// ignoresFor is how long the lane ignores notifications. Any login may send them at any rate, and
// each look costs a commit.
func (i *idleness) ignoresFor(now time.Time) time.Duration {
	if i.unfounded <= believed {
		return 0
	}
	return unfoundedInterval - now.Sub(i.wokenAt)
}

// looked records how many rows a claim with that mark found that was started at begun. It reports
// whether one more look is needed: before the mark was committed, a producer may have committed a
// row that the claim did not see, and sent no notification. The same holds at the end of a stream,
// until that look's mark is committed.
func (i *idleness) looked(mark IdleMark, begun, now time.Time, found int) (owed bool) {
	wasStanding, wasStream := now.Before(i.until), i.isStream()
	switch mark {
	case IdleWaiting:
		i.until = now.Add(IdleFor)
	case IdleBusy:
		i.until = time.Time{}
	}
	if found == 0 {
		// Only a stream of many rows may rest: otherwise a trickle of rows after it would keep
		// the lane polling forever.
		i.rests = i.isStream() && begun.Sub(i.busyAt) < streamRest
		i.found = 0
	} else {
		i.activeAt, i.unfounded = now, 0
		if i.found += found; i.found >= busyRows {
			i.busyAt, i.rests = now, false
		}
	}
	return (mark == IdleWaiting && !wasStanding) || (wasStream && !i.isStream())
}
