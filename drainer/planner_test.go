package drainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func found(n int) ClaimReply {
	reply := ClaimReply{Found: n}
	if n > 0 {
		reply.Of = []Taken{{Found: n, Next: Cursor{NextAttemptAt: time.Unix(int64(n), 0), IntentID: int64(n)}}}
	}
	return reply
}

// look plans a look and reports its result to the scan.
func look(s *scan, limit, rows int, took time.Duration) {
	claim, reply := planned(s, limit), found(rows)
	reply.Took = took
	s.looked(claim, reply, time.Now())
}

func planned(s *scan, limit int) Claim {
	claim := Claim{Limit: limit}
	s.plan(&claim, time.Now())
	return claim
}

// follows returns the cursor from which the next look continues for the rows of tenant 0.
func follows(s *scan) Cursor {
	for _, part := range planned(s, 5).Parts {
		if part.First == 0 {
			return part.After
		}
	}
	return Cursor{IntentID: -1}
}

func TestTheFirstLookIsAFullScan(t *testing.T) {
	var s scan
	if !s.again() || follows(&s) != (Cursor{}) {
		t.Error("want a look at once, from the start")
	}
}

func TestABusyLaneFollowsTheCursorAndRescansOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Millisecond)
		if !s.again() {
			t.Error("a full claim wants another look at once")
		}
		if follows(&s) != found(5).Of[0].Next {
			t.Error("want the cursor while the stream lasts")
		}
		look(&s, 5, 5, time.Millisecond)
		time.Sleep(fullScanInterval + time.Millisecond)
		if follows(&s) != (Cursor{}) {
			t.Error("want a full scan once a second, for what landed behind the cursor")
		}
	})
}

func TestASlowFullScanIsRepeatedLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 200 * time.Millisecond
		var s scan
		look(&s, 5, 5, took)
		time.Sleep(fullScanShare*took - time.Millisecond)
		if follows(&s) == (Cursor{}) {
			t.Error("the next full scan came too early")
		}
		time.Sleep(2 * time.Millisecond)
		if follows(&s) != (Cursor{}) {
			t.Error("the next full scan is overdue")
		}
	})
}

func TestTheLookBeforeAWaitIsAFullScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 2, time.Millisecond)
		if s.again() {
			t.Error("a claim that found less than it asked for need not look again at once")
		}
		time.Sleep(pollInterval)
		if follows(&s) != (Cursor{}) {
			t.Error("want a full scan when there is time for it")
		}
	})
}

func TestALaneThatDrainsOnceDoesNotWaitForItsLastFullScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for outstanding, isFull := range map[int]bool{1: false, 0: true} {
			p := planner{claim: Claim{LooksLast: true}}
			look(&p.scan, 5, 2, time.Second) // which forbids another for twenty
			claim := p.nextClaim(load{now: time.Now(), slots: 5, budget: 5, outstanding: outstanding, passage: passRows})
			if got := slices.IndexFunc(claim.Parts, func(p Part) bool { return p.First == 0 && p.After == Cursor{} }) >= 0; got != isFull {
				t.Errorf("with %d rows under way the next look is a full scan: %t, want %t", outstanding, got, isFull)
			}
		}
	})
}

// Another worker may hold what a limit keeps for minutes.
func TestALaneThatWaitsForATenantsLimitScansNoMoreThanAnyOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took, looks = 400 * time.Millisecond, 240 // in a minute
		p := planner{claim: Claim{LooksLast: true}}
		look(&p.scan, 5, 2, took)
		scans := 0
		next := func(reply ClaimReply) {
			time.Sleep(pollInterval)
			claim := p.nextClaim(load{now: time.Now(), slots: 5, budget: 5, passage: passRows})
			if claim.IsFull() {
				scans++
			} else {
				reply.Held = false // it is not asked
			}
			reply.Took = took
			p.claimed(claim, time.Now(), time.Now(), reply)
		}
		for range looks {
			if next(ClaimReply{Held: true}); p.scan.nothing {
				t.Fatal("it ends while rows are kept")
			}
		}
		if most := int(looks*pollInterval/(fullScanShare*took)) + 1; scans == 0 || scans > most {
			t.Errorf("%d of %d looks were full scans, want at most %d", scans, looks, most)
		}
		p.claimed(p.nextClaim(load{now: time.Now(), slots: 5, budget: 5, passage: passRows}), time.Now(), time.Now(), found(1))
		for range 2 {
			next(ClaimReply{})
		}
		if !p.scan.nothing {
			t.Error("once it found what was kept, it waits for its last full scan")
		}
	})
}

func TestOnlyAnEmptyFullScanShowsThatNothingIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Second)
		look(&s, 5, 0, time.Millisecond)
		if s.nothing {
			t.Error("an empty look behind the cursor says nothing about what is before it")
		}
		time.Sleep(fullScanShare*time.Second + time.Second)
		look(&s, 5, 0, time.Millisecond)
		if !s.nothing {
			t.Error("want: nothing is due")
		}
		for _, held := range []bool{true, false} {
			claim := Claim{Limit: 5, Parts: []Part{{Last: LastTenant, Limit: 5}}}
			if s.looked(claim, ClaimReply{Held: held}, time.Now()); s.nothing == held {
				t.Errorf("rows are held: %t; nothing is due: %t", held, s.nothing)
			}
		}
	})
}

func TestAnOwedLookIsTakenOnce(t *testing.T) {
	var s scan
	look(&s, 5, 0, time.Millisecond)
	s.requestLook()
	if !s.again() {
		t.Error("want the look that is owed")
	}
	look(&s, 5, 0, time.Millisecond)
	if s.again() {
		t.Error("want it once")
	}
}

func TestALookThatBeganBeforePaysNoDebt(t *testing.T) {
	var s scan
	look(&s, 5, 0, time.Millisecond)
	earlier := planned(&s, 5)
	s.requestLook()
	s.looked(earlier, found(0), time.Now())
	if !s.again() {
		t.Error("the look that is owed has not begun")
	}
}

func TestLooksThatBeganTogetherPassNothingOver(t *testing.T) {
	var everywhere Cursor
	from := func(n int) Cursor { return found(n).Of[0].Next }
	for name, test := range map[string]struct {
		cursor Cursor
		looks  []Cursor // from where, in the order in which they are heard of
		ends   []int
		want   Cursor
	}{
		"the farther one is heard of first": {from(10), []Cursor{from(10), from(10)}, []int{30, 20}, from(30)},
		"the nearer one is heard of first":  {from(10), []Cursor{from(10), from(10)}, []int{20, 30}, from(30)},
		"a full scan starts over":           {from(10), []Cursor{everywhere}, []int{5}, from(5)},
		"and the other one stays behind":    {from(10), []Cursor{everywhere, from(10)}, []int{5, 20}, from(5)},
		"whichever comes first":             {from(10), []Cursor{from(10), everywhere}, []int{20, 5}, from(5)},
	} {
		s := scan{tenants: []*tenant{{weight: 1, fronts: []front{{cursor: test.cursor}}}}}
		for i, after := range test.looks {
			claim := Claim{Limit: 1, Parts: []Part{{Limit: 1, After: after}}}
			s.looked(claim, ClaimReply{Found: 1, Of: []Taken{{Found: 1, Next: from(test.ends[i])}}}, time.Now())
		}
		if cursor := s.tenants[0].fronts[0].cursor; cursor != test.want {
			t.Errorf("%s: it goes on from %v, want %v", name, cursor, test.want)
		}
	}
}

func TestALookBesideAFullScanIsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scan
		look(&s, 5, 5, time.Millisecond)
		time.Sleep(fullScanInterval + time.Millisecond)
		if follows(&s) != (Cursor{}) || follows(&s) == (Cursor{}) {
			t.Error("want one full scan, and one look by the cursor beside it")
		}
	})
}

func TestAfterAFailureTheNextLookIsAFullScan(t *testing.T) {
	var s scan
	look(&s, 5, 5, time.Millisecond)
	s.restart()
	if !s.again() || s.nothing || follows(&s) != (Cursor{}) {
		t.Error("rows that a failed claim left can lie behind the cursor")
	}
}

func TestATurnBeginsBesideAnotherOneOnlyWithAsMuchAsATurnCarries(t *testing.T) {
	t.Parallel()
	settling, claiming := &share{settle: ofIntents(1)}, &share{claim: Claim{Limit: fullBatch}}
	for name, test := range map[string]struct {
		settled int
		given   func(*lane)
		settles bool
		claims  bool
	}{
		"nothing is under way":         {1, func(*lane) {}, true, true},
		"a full turn waits":            {fullBatch, func(l *lane) { l.inFlight.add(settling) }, true, true},
		"less than that waits":         {fullBatch - 1, func(l *lane) { l.inFlight.add(settling) }, false, true},
		"two settle already":           {fullBatch, func(l *lane) { l.inFlight.settling = []*share{settling, settling} }, false, true},
		"two claim already":            {fullBatch, func(l *lane) { l.inFlight.claiming = []*share{claiming, claiming} }, true, false},
		"little was due":               {0, func(l *lane) { l.inFlight.add(settling); l.planner.scan.hungry = false }, false, false},
		"there is no room for so many": {0, func(l *lane) { l.inFlight.add(settling); l.outstanding = 4 * fullBatch }, false, false},
		"one of them has failed":       {fullBatch, func(l *lane) { l.inFlight.add(settling); l.fail(errAway) }, false, false},
		"the database just failed":     {fullBatch, func(l *lane) { l.inFlight.add(settling); l.failures = 1 }, false, false},
		"others serve the provider":    {fullBatch, func(l *lane) { l.inFlight.add(settling); l.server.applyGate(Gate{Workers: 2}) }, false, false},
		"a reply may have been lost":   {fullBatch, func(l *lane) { l.inFlight.add(settling); l.reclaimAt = time.Now() }, false, false},
	} {
		l := laneTo(nil)
		l.settled, l.planner.prefetch, l.planner.scan.hungry = make([]Settlement, test.settled), 4*fullBatch, true
		l.outstanding = fullBatch
		test.given(l)
		if settles, claims := l.planner.maySettle(l.load(t.Context())), l.planner.mayClaim(l.load(t.Context())); settles != test.settles || claims != test.claims {
			t.Errorf("%s: it settles %v and claims %v, want %v and %v", name, settles, claims, test.settles, test.claims)
		}
	}
}

func TestASearchForOtherTenantsComesBesideLargeClaims(t *testing.T) {
	t.Parallel()
	large, small := &share{claim: Claim{Limit: fullBatch}}, &share{claim: Claim{Limit: fullBatch/2 - 1}}
	search := &share{claim: Claim{Limit: searchRows, IsSearch: true}}
	for name, test := range map[string]struct {
		given    func(*lane)
		searches bool
		in       time.Duration
	}{
		"a large claim is under way":    {func(*lane) {}, true, 0},
		"so is another one":             {func(l *lane) { l.inFlight.claiming = []*share{large, small} }, true, 0},
		"only a small one is":           {func(l *lane) { l.inFlight.claiming = []*share{small} }, false, 0},
		"others serve the provider":     {func(l *lane) { l.server.shared.Store(true) }, true, 0},
		"the last search was just now":  {func(l *lane) { l.planner.scan.searchAt = time.Now().Add(searchInterval) }, true, searchInterval},
		"a search is under way":         {func(l *lane) { l.inFlight.search = search }, false, 0},
		"no second tenant is known":     {func(l *lane) { l.planner.scan.tenants = l.planner.scan.tenants[:1] }, false, 0},
		"no tenant is hungry":           {func(l *lane) { l.planner.scan.hungry = false }, false, 0},
		"a batch has failed":            {func(l *lane) { l.fail(errAway) }, false, 0},
		"a reply may have been lost":    {func(l *lane) { l.reclaimAt = time.Now() }, false, 0},
		"all connections are in use":    {func(l *lane) { l.committer.idle.Store(0) }, false, 0},
		"claimed rows may not wait":     {func(l *lane) { l.planner.prefetches = false }, false, 0},
		"as many rows wait as may":      {func(l *lane) { l.outstanding = l.server.slots.size() + maxPrefetch - fullBatch }, true, 0},
		"a search has brought one more": {func(l *lane) { l.outstanding = l.server.slots.size() + maxPrefetch - fullBatch + 1 }, false, 0},
		"their payloads are large": {func(l *lane) {
			l.planner.payloadBytes, l.outstanding = maxPrefetchBytes/fullBatch, l.server.slots.size()+1
		}, false, 0},
		"they are as large as they may be": {func(l *lane) {
			l.planner.payloadBytes, l.outstanding = maxPrefetchBytes/fullBatch, l.server.slots.size()
		}, true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := laneTo(nil)
			l.committer.idle.Store(1)
			l.inFlight.add(large)
			l.planner.prefetches, l.planner.scan.hungry, l.planner.scan.tenants = true, true, []*tenant{{}, {id: 3}}
			test.given(l)
			load := l.load(t.Context())
			if in, searches := l.planner.searchIn(load); searches != test.searches || (searches && in != test.in) {
				t.Errorf("%s: it searches: %t, in %s; want %t, %s", name, searches, in, test.searches, test.in)
			}
			if due := l.planner.isBatchDue(load); due != (test.searches && test.in == 0) {
				t.Errorf("%s: a batch is due: %t", name, due)
			}
		})
	}
}

// A search's reply may have been lost like that of any claim, so it must be known before anything else begins.
func TestAfterAFailureALaneWaitsForItsSearch(t *testing.T) {
	t.Parallel()
	for _, given := range []func(*lane){func(l *lane) { l.fail(errAway) }, func(l *lane) { l.reclaimAt = time.Now() }} {
		synctest.Test(t, func(t *testing.T) {
			l := laneTo(nil)
			given(l)
			l.settled = make([]Settlement, fullBatch)
			l.inFlight.search = &share{claim: Claim{Limit: searchRows, IsSearch: true}}
			load := l.load(t.Context())
			if l.planner.isBatchDue(load) || l.planner.maySettle(load) || l.planner.mayClaim(load) {
				t.Error("a batch begins while the search is under way")
			}
			if wait := l.planner.wait(load); wait != pollInterval {
				t.Errorf("it looks again in %s", wait)
			}
		})
	}
}

// A search brings few rows, so its success or failure says nothing about the bytes that a link carries in time.
func TestASearchLeavesTheSizeOfClaimsAsItIs(t *testing.T) {
	t.Parallel()
	p := planner{claimBytes: 4 * minClaimBytes, payloadBytes: 10}
	search := p.nextSearch(time.Now())
	p.claimed(search, time.Now(), time.Now(), ClaimReply{Rows: []*Row{{Payload: make([]byte, 30)}}})
	if p.claimBytes != 4*minClaimBytes || p.payloadBytes != 30 {
		t.Errorf("after a search, claims have %d bytes, want %d, and payloads count as %d, want 30", p.claimBytes, 4*minClaimBytes, p.payloadBytes)
	}
	if p.claimFailed(search, time.Second, time.Now()); p.claimBytes != 4*minClaimBytes {
		t.Errorf("after a search that failed, claims have %d bytes", p.claimBytes)
	}
}

func TestARowIsNotGivenBackWhileAReplyMayBringIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		given    func(*lane)
		reclaims bool
	}{
		"it is due":                      {func(l *lane) { l.reclaimAt = time.Now() }, true},
		"it is not due":                  {func(*lane) {}, false},
		"a batch failed":                 {func(l *lane) { l.failures = 1 }, true},
		"due since a turn was let begin": {func(l *lane) { l.inFlight.add(&share{claim: Claim{Limit: 1}}); l.reclaimAt = time.Now() }, false},
	} {
		l, outbox := laneTo(nil), &reclaimCounter{}
		l.claims = outbox
		test.given(l)
		if err := l.reclaim(lifetimes{giveUp: t.Context()}); err != nil {
			t.Error(err)
		}
		if reclaims := outbox.reclaimed == 1; reclaims != test.reclaims {
			t.Errorf("%s: it reclaims %v, want %v", name, reclaims, test.reclaims)
		}
	}
}

func TestWhatBecameAQuestionInALostReplyWaitsForTheLastSend(t *testing.T) {
	t.Parallel()
	asked := dispatch.Policy{Class: dispatch.KeyIdempotent, Timeout: time.Minute, Lookup: &dispatch.Lookup{Margin: time.Second}}
	for name, test := range map[string]struct {
		row    Row
		policy dispatch.Policy
		want   time.Duration
	}{
		"a question":                {Row{Lookup: true, MaybeApplied: true}, asked, time.Minute + time.Second},
		"an act":                    {Row{MaybeApplied: true}, asked, 0},
		"a question nobody answers": {Row{Lookup: true, MaybeApplied: true}, dispatch.Policy{Class: dispatch.KeyIdempotent}, 0},
	} {
		l := laneTo(nil)
		l.server.provider.Tools = map[string]dispatch.Policy{"act": test.policy}
		row := test.row
		row.Tuple = dispatch.Tuple{ToolName: "sim/act"}
		given, judged := l.releaseLost(&row)
		if !judged || given.Decision.Delay != test.want || given.Decision.Lookup != row.Lookup {
			t.Errorf("%s: it is given back as %+v, want a delay of %v", name, given.Decision, test.want)
		}
	}
}

func TestALostReplyEndsTheProbesThatItMayHaveBegun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		way     route
		probing string
		lookup  bool
		want    []string
	}{
		"nothing is tried":                {route{"sim", "sim"}, "", false, []string{"sim", "sim/act"}},
		"it was to be asked":              {route{"sim", "sim"}, "", true, []string{"sim", "sim/find"}},
		"the operation is tried already":  {route{"sim", "sim"}, "sim/act", false, []string{"sim"}},
		"the provider is tried already":   {route{"sim", "sim"}, "sim", false, []string{"sim/act"}},
		"its own lane tries the fallback": {route{"own", "sim"}, "", false, []string{"sim"}},
	} {
		l := laneTo(nil)
		l = laneOn(test.way, l.server.provider)
		l.server.provider.Tools = map[string]dispatch.Policy{"act": {Class: dispatch.KeyIdempotent, Lookup: &dispatch.Lookup{Operation: "find"}}}
		l.probes[test.probing]++
		row := &Row{Lookup: test.lookup, Tuple: dispatch.Tuple{ToolName: test.way.provider + "/act"}}
		if test.way.isDetour() {
			row.Via = "sim"
		}
		given, _ := l.releaseLost(row)
		var ended []string
		for _, change := range given.Breakers {
			if change.Open && change.Probe && change.For == 0 && change.Reason == "" {
				ended = append(ended, change.Gate)
			}
		}
		if !slices.Equal(ended, test.want) {
			t.Errorf("%s: the probes of %v end, want %v", name, ended, test.want)
		}
	}
}

type reclaimCounter struct {
	claimStore
	reclaimed int
}

func (c *reclaimCounter) Reclaim(context.Context, string, string, string, []int64, Judge) ([]Settlement, error) {
	c.reclaimed++
	return nil, nil
}

func TestWhatTurnsUnderWayMayBringIsNotClaimedAgain(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	l.server.slots.resize(10)
	l.inFlight.add(&share{claim: Claim{Limit: 4}})
	if room := l.planner.room(l.load(t.Context())); room != 6 {
		t.Errorf("it has room for %d, want 6", room)
	}
}

func TestATurnThatKeepsFailingGetsSmaller(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	for failures, want := range []int{fullBatch, fullBatch / 2, fullBatch / 4} {
		l.settled, l.failures = make([]Settlement, 3*fullBatch), failures
		if taken := len(l.takeSettled()); taken != want || len(l.settled) != 3*fullBatch-want {
			t.Errorf("after %d failures it takes %d and leaves %d, want %d", failures, taken, len(l.settled), want)
		}
	}
	l.settled, l.failures = make([]Settlement, 3), 100
	if taken := len(l.takeSettled()); taken != 1 {
		t.Errorf("it takes %d in the end, want one", taken)
	}
}

// A link may be too slow for what a claim asks for, and the same claim again would fail again.
func TestAClaimThatFailsAsksForHalf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		claim := func(takes time.Duration, err error) (asked int) {
			batch := newShare(&l.inFlight)
			batch.claim = l.planner.nextClaim(l.load(t.Context()))
			l.inFlight.add(batch)
			time.Sleep(takes)
			l.onClaimed(claimResult{of: batch, err: err})
			l.failed = nil
			return batch.claim.Bytes
		}
		for _, step := range []struct {
			takes time.Duration
			err   error
			asks  int
		}{
			{batchTimeout, errAway, maxClaimBytes},
			{batchTimeout, errAway, maxClaimBytes / 2},
			{batchTimeout / 2, nil, maxClaimBytes / 4}, // twice as much would fail
			{batchTimeout / 5, nil, maxClaimBytes / 4},
			{time.Millisecond, nil, maxClaimBytes / 2},
			{time.Millisecond, nil, maxClaimBytes},
			{time.Millisecond, nil, maxClaimBytes},
		} {
			if asks := claim(step.takes, step.err); asks != step.asks {
				t.Errorf("it asks for %d bytes, want %d", asks, step.asks)
			}
		}
		for range 20 {
			claim(batchTimeout, errAway)
		}
		if l.planner.scan.searchAt.Before(time.Now().Add(batchTimeout)) {
			t.Error("a search that failed late is repeated beside due tenants before they had more of the time")
		}
		if asks := claim(0, nil); asks != minClaimBytes {
			t.Errorf("in the end it asks for %d bytes, want %d", asks, minClaimBytes)
		}
	})
}

func TestALaneWhoseTurnNobodyAnswersIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		life := lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}
		batch := newShare(&l.inFlight)
		batch.settle = ofIntents(1)
		l.inFlight.add(batch)
		for began := time.Now(); !l.pulse.stuck(); l.round(life) {
			if waits := time.Since(began); waits > 2*batchTimeout+stuckAfter+time.Second {
				t.Fatalf("its round still counts as going after %s", waits)
			}
		}
	})
}

// flakyOutbox is an outbox in memory for one lane. Any turn may fail, before its commit or after it. A turn takes
// some time, so that replies overtake one another.
type flakyOutbox struct {
	t *testing.T

	mu        sync.Mutex
	random    *rand.Rand
	flaky     float64 // the share of turns that fail
	place     int64
	queue     []claimable
	claims    map[int64]map[int64]bool // claim → its rows → whether settled
	ended     map[int64]int            // intent → settlements accepted
	peak      int                      // turns under way at once
	committer int
}

type claimable struct{ intent, place int64 }

var errTurn = errors.New("the batch failed")

func newFlakyOutbox(t *testing.T, seed uint64, intents int) *flakyOutbox {
	o := &flakyOutbox{
		t: t, random: rand.New(rand.NewPCG(seed, 0)),
		claims: map[int64]map[int64]bool{}, ended: map[int64]int{},
	}
	for intent := range int64(intents) {
		o.enqueue(intent + 1)
	}
	return o
}

func (o *flakyOutbox) enqueue(intent int64) {
	o.place++
	o.queue = append(o.queue, claimable{intent, o.place})
}

func (o *flakyOutbox) Commit(_ context.Context, _ string, batch Batch) (reply BatchReply, err error) {
	fate, comes, goes := o.begin()
	time.Sleep(comes)
	if fate >= o.flaky/2 {
		reply = o.commit(batch)
	}
	time.Sleep(goes)
	if fate < o.flaky {
		reply, err = BatchReply{}, errTurn
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.committer--
	return reply, err
}

func (o *flakyOutbox) begin() (fate float64, comes, goes time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.committer++
	o.peak = max(o.peak, o.committer)
	millis := func(n int) time.Duration { return time.Duration(o.random.IntN(n)) * time.Millisecond }
	return o.random.Float64(), millis(30), millis(5)
}

func (o *flakyOutbox) commit(batch Batch) (reply BatchReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range batch.Settle {
		rows, isHeld := o.claims[s.Row.ClaimID]
		settled, isOfIt := rows[s.Row.IntentID]
		if !isHeld || !isOfIt || settled {
			reply.Refused = append(reply.Refused, i)
			continue
		}
		rows[s.Row.IntentID] = true
		o.ended[s.Row.IntentID]++
	}
	for _, claim := range batch.Finish {
		o.finish(claim)
	}
	for _, claim := range batch.Claims {
		reply.Claimed = append(reply.Claimed, o.claim(claim))
	}
	return reply
}

func (o *flakyOutbox) finish(claim int64) {
	for intent, settled := range o.claims[claim] {
		if !settled {
			o.t.Errorf("claim %d is finished, and its row %d has not ended", claim, intent)
		}
	}
	delete(o.claims, claim)
}

func (o *flakyOutbox) claim(claim Claim) (reply ClaimReply) {
	var after Cursor
	if len(claim.Parts) > 0 {
		of := slices.IndexFunc(claim.Parts, func(part Part) bool { return part.Has(0) })
		if of < 0 { // a search for other tenants, of which there are none
			return reply
		}
		after = claim.Parts[of].After
	}
	id := int64(len(o.ended)+len(o.claims)) + o.random.Int64N(1<<40)
	placeOf := func(row claimable) Cursor { return Cursor{time.Unix(row.place, 0), row.intent} }
	first := sort.Search(len(o.queue), func(i int) bool { return placeOf(o.queue[i]).Compare(after) > 0 })
	taken := slices.Clone(o.queue[first:min(len(o.queue), first+claim.Limit)])
	for _, row := range taken {
		reply.Found++
		reply.Of = []Taken{{Found: reply.Found, Next: placeOf(row)}}
		reply.Rows = append(reply.Rows, &Row{
			ClaimID: id, IntentID: row.intent, Tries: 1, Attempt: 1, ClaimedAt: time.Now(),
			Tuple: dispatch.Tuple{ToolName: "sim/act", BusinessScope: strconv.FormatInt(row.intent, 10)},
		})
	}
	if first == 0 {
		o.queue = o.queue[len(taken):] // without a copy of the rest, which the race detector makes slow
	} else {
		o.queue = slices.Delete(o.queue, first, first+len(taken))
	}
	if reply.Found > 0 {
		o.claims[id] = map[int64]bool{}
	}
	for _, row := range reply.Rows {
		o.claims[id][row.IntentID] = false
	}
	return reply
}

func (o *flakyOutbox) TryOperation(context.Context, string, string, time.Duration) (bool, error) {
	return false, nil
}

func (o *flakyOutbox) Reclaim(_ context.Context, _, _, _ string, remembered []int64, _ Judge) (given []Settlement, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.committer > 0 {
		o.t.Error("it reclaims beside a turn, whose claim it cannot know of yet")
	}
	for id, rows := range o.claims {
		if slices.Contains(remembered, id) {
			continue
		}
		for intent, settled := range rows {
			if !settled {
				o.enqueue(intent)
				given = append(given, Settlement{})
			}
		}
		delete(o.claims, id)
	}
	return given, nil
}

func (o *flakyOutbox) Reap(context.Context, []string, Judge) ([]Settlement, error) { return nil, nil }

func (o *flakyOutbox) NoteRendered(context.Context, string, []string) error { return nil }

func (o *flakyOutbox) IsRendered(context.Context, string, string) (bool, error) { return false, nil }

func (o *flakyOutbox) ProbeNow(context.Context, []string) error { return nil }

func (o *flakyOutbox) ExpireRefused(context.Context, string, []string, time.Duration, Judge) ([]Settlement, error) {
	return nil, nil
}

func (o *flakyOutbox) Expire(context.Context, string, []string, time.Duration, Judge) ([]Settlement, error) {
	return nil, nil
}

func (o *flakyOutbox) Unpark(context.Context, []string, []string) error { return nil }

// drainOnce runs a lane of the outbox until nothing is left, and returns how often
// each intent was sent.
func drainOnce(t *testing.T, o *flakyOutbox) (sent map[int64]int) {
	t.Helper()
	sent = map[int64]int{}
	requests := make(chan int64, 1<<16)
	l := laneTo(requestFunc(func(request dispatch.Request) {
		intent, err := strconv.ParseInt(request.Tuple.BusinessScope, 10, 64)
		if err != nil {
			t.Error(err)
		}
		requests <- intent
	}))
	var said *bytes.Buffer
	l.observer, said = observing(l.server.provider)
	l.once = true
	l.claims, l.committer = o, newCommitter(o, "worker", func(time.Duration, error) {}, nil)
	l.pool.lease = newLease(beatFunc(nil), "worker", WorkerSettings{Lease: 1000 * time.Hour}, time.Now())
	running, stop := context.WithCancel(t.Context())
	committed := make(chan struct{})
	go func() {
		l.committer.run(running)
		close(committed)
	}()
	if err := l.run(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}); err != nil {
		t.Error(err)
	}
	if strings.Contains(said.String(), "its lease was lost") {
		t.Error("an outcome is said to come too late, of a lease that was held throughout")
	}
	stop()
	<-committed
	close(requests)
	for intent := range requests {
		sent[intent]++
	}
	return sent
}

type requestFunc func(dispatch.Request)

func (f requestFunc) Dispatch(_ context.Context, request dispatch.Request) dispatch.Result {
	f(request)
	return healthy
}

// A turn's commit, its reply and the news of another turn can come in any order, or
// never.
func TestWhateverBecomesOfItsTurnsALaneSendsAndSettlesEachIntentOnce(t *testing.T) {
	t.Parallel()
	const intents = 12_000
	peak := 0
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outbox := newFlakyOutbox(t, seed, intents)
				outbox.flaky = []float64{0, 0.05, 0.1, 0.3}[seed%4]
				sent := drainOnce(t, outbox)
				for intent := range int64(intents) {
					if sent[intent+1] != 1 || outbox.ended[intent+1] != 1 {
						t.Fatalf("intent %d was sent %d times and settled %d times", intent+1, sent[intent+1], outbox.ended[intent+1])
					}
				}
				if len(outbox.queue) > 0 || len(outbox.claims) > 0 {
					t.Errorf("%d rows and %d claims are left", len(outbox.queue), len(outbox.claims))
				}
				peak = max(peak, outbox.peak)
			})
		})
	}
	if peak < 3 {
		t.Errorf("at most %d halves of turns were under way at once: nothing was tried", peak)
	}
}

func TestALaneWaitsOnlyForWhatMakesItsNextTurnBetter(t *testing.T) {
	t.Parallel()
	over, end := context.WithCancel(t.Context())
	end()
	emptied := scan{hasBegun: true}
	for name, test := range map[string]struct {
		stop        context.Context
		settled     int
		outstanding int
		scan        scan
		want        time.Duration
	}{
		"it has not looked yet":                {t.Context(), 0, 0, scan{}, 0},
		"more is due, and some under way":      {t.Context(), 0, 2, scan{}, linger},
		"nothing was due":                      {t.Context(), 0, 0, emptied, pollInterval},
		"nothing was due, and some under way":  {t.Context(), 0, 2, emptied, pollInterval},
		"outcomes wait":                        {t.Context(), 1, 0, emptied, linger},
		"outcomes wait, and more is due":       {t.Context(), 1, 0, scan{}, linger},
		"more is due, and there is no room":    {t.Context(), 0, 4, scan{}, pollInterval},
		"more is due, and it claims no more":   {over, 0, 0, scan{}, pollInterval},
		"outcomes wait, and it claims no more": {over, 1, 0, scan{}, linger},
	} {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.settled, l.outstanding, l.planner.scan = make([]Settlement, test.settled), test.outstanding, test.scan
		if got := l.planner.wait(l.load(test.stop)); got != test.want {
			t.Errorf("%s: it waits %s, want %s", name, got, test.want)
		}
	}
}

func TestALaneLooksForItselfWhileAStreamRests(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	l.server.slots.resize(4)
	l.planner.scan, l.planner.idle = scan{hasBegun: true}, idleness{rests: true}
	if got := l.planner.wait(l.load(t.Context())); got != lookInterval {
		t.Errorf("it waits %s, want %s", got, lookInterval)
	}
}

// Another replica may have taken what it was woken for.
func TestALaneThatWasWokenForNothingLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.planner.scan = scan{hasBegun: true}
		l.wake <- struct{}{}
		life := lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}
		const ms = time.Millisecond
		began := time.Now()
		for _, want := range []time.Duration{0, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 16*ms + pollInterval} {
			l.await(life)
			if at := time.Since(began); at != want {
				t.Errorf("it looks after %s, want %s", at, want)
			}
		}
	})
}

// An outcome can come between two looks: it waits for company like any other.
func TestAnOutcomeThatIsHereAlreadyDoesNotWaitForTheNextPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.server.slots.resize(4)
		l.planner.scan, l.outstanding = scan{hasBegun: true}, 2
		l.pool.outcomes.put(Settlement{Row: &Row{}})
		began := time.Now()
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if waited := time.Since(began); waited != linger {
			t.Errorf("it waited %s, want %s", waited, linger)
		}
	})
}

// A claim under way may have looked before there was anything to see.
func TestANotificationIsKeptWhileATurnIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.inFlight.add(&share{claim: Claim{Limit: 1}})
		l.wake <- struct{}{}
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if len(l.wake) == 0 {
			t.Error("it is lost")
		}
	})
}

func TestALaneThatGivesUpDoesNotWaitToHearOfItsTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.inFlight.add(&share{settle: ofIntents(1)})
		over, end := context.WithCancel(t.Context())
		end()
		began := time.Now()
		l.await(lifetimes{stop: over, abort: over, giveUp: over})
		if waited := time.Since(began); waited > 0 {
			t.Errorf("it waited %s", waited)
		}
	})
}

// Whatever is collected makes room for another claim.
func TestALaneCollectsNoMoreThanATurnsWorthOfOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		l.outstanding = 2 * fullBatch
		for range l.outstanding {
			l.pool.outcomes.put(Settlement{Row: &Row{}})
		}
		l.inFlight.settling = []*share{{}, {}}
		l.await(lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()})
		if len(l.settled) != fullBatch {
			t.Errorf("it collected %d, want %d", len(l.settled), fullBatch)
		}
		if l.outstanding != fullBatch {
			t.Errorf("%d are outstanding, want the %d that it did not collect", l.outstanding, fullBatch)
		}
	})
}
