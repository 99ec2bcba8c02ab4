package drainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestATurnBeginsBesideAnotherOneOnlyWithAsMuchAsATurnCarries(t *testing.T) {
	t.Parallel()
	settling, claiming := &laneTurn{settle: ofIntents(1)}, &laneTurn{claim: Claim{Limit: fullTurn}}
	for name, test := range map[string]struct {
		settled int
		given   func(*lane)
		settles bool
		claims  bool
	}{
		"nothing is under way":         {1, func(*lane) {}, true, true},
		"a full turn waits":            {fullTurn, func(l *lane) { l.pending.add(settling) }, true, true},
		"less than that waits":         {fullTurn - 1, func(l *lane) { l.pending.add(settling) }, false, true},
		"two settle already":           {fullTurn, func(l *lane) { l.pending.settling = []*laneTurn{settling, settling} }, false, true},
		"two claim already":            {fullTurn, func(l *lane) { l.pending.claiming = []*laneTurn{claiming, claiming} }, true, false},
		"little was due":               {0, func(l *lane) { l.pending.add(settling); l.scan.hungry = false }, false, false},
		"there is no room for so many": {0, func(l *lane) { l.pending.add(settling); l.outstanding = 4 * fullTurn }, false, false},
		"one of them has failed":       {fullTurn, func(l *lane) { l.pending.add(settling); l.fail(errAway) }, false, false},
		"the database just failed":     {fullTurn, func(l *lane) { l.pending.add(settling); l.failures = 1 }, false, false},
		"others serve the provider":    {fullTurn, func(l *lane) { l.pending.add(settling); l.server.learn(Gate{Workers: 2}) }, false, false},
		"a reply may have been lost":   {fullTurn, func(l *lane) { l.pending.add(settling); l.reclaimAt = time.Now() }, false, false},
	} {
		l := laneTo(nil)
		l.settled, l.prefetch, l.scan.hungry = make([]Settlement, test.settled), 4*fullTurn, true
		l.outstanding = fullTurn
		test.given(l)
		if settles, claims := l.maySettle(), l.mayClaim(t.Context()); settles != test.settles || claims != test.claims {
			t.Errorf("%s: it settles %v and claims %v, want %v and %v", name, settles, claims, test.settles, test.claims)
		}
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
		"a turn failed":                  {func(l *lane) { l.failures = 1 }, true},
		"due since a turn was let begin": {func(l *lane) { l.pending.add(&laneTurn{claim: Claim{Limit: 1}}); l.reclaimAt = time.Now() }, false},
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
		given, judged := l.forget(&row)
		if !judged || given.Decision.Delay != test.want || given.Decision.Lookup != row.Lookup {
			t.Errorf("%s: it is given back as %+v, want a delay of %v", name, given.Decision, test.want)
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
	l.pending.add(&laneTurn{claim: Claim{Limit: 4}})
	if room := l.room(); room != 6 {
		t.Errorf("it has room for %d, want 6", room)
	}
}

func TestATurnThatKeepsFailingGetsSmaller(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	for failures, want := range []int{fullTurn, fullTurn / 2, fullTurn / 4} {
		l.settled, l.failures = make([]Settlement, 3*fullTurn), failures
		if taken := len(l.takeSettled()); taken != want || len(l.settled) != 3*fullTurn-want {
			t.Errorf("after %d failures it takes %d and leaves %d, want %d", failures, taken, len(l.settled), want)
		}
	}
	l.settled, l.failures = make([]Settlement, 3), 100
	if taken := len(l.takeSettled()); taken != 1 {
		t.Errorf("it takes %d in the end, want one", taken)
	}
}

func TestALaneWhoseTurnNobodyAnswersIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := laneTo(nil)
		life := lifetimes{stop: t.Context(), abort: t.Context(), giveUp: t.Context()}
		turn := newLaneTurn(&l.pending)
		turn.settle = ofIntents(1)
		l.pending.add(turn)
		for began := time.Now(); !l.pulse.stuck(); l.round(life) {
			if waits := time.Since(began); waits > 2*turnTimeout+stuckAfter+time.Second {
				t.Fatalf("its round still counts as going after %s", waits)
			}
		}
	})
}

// flakyOutbox is an outbox in memory for one lane. Any turn may fail, before its
// commit or after it, and takes its time, so that replies overtake one another.
type flakyOutbox struct {
	t *testing.T

	mu     sync.Mutex
	random *rand.Rand
	flaky  float64 // the share of turns that fail
	place  int64
	queue  []claimable
	claims map[int64]map[int64]bool // claim → its rows → whether settled
	ended  map[int64]int            // intent → settlements accepted
	peak   int                      // turns under way at once
	turns  int
}

type claimable struct{ intent, place int64 }

var errTurn = errors.New("the turn failed")

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

func (o *flakyOutbox) Turn(_ context.Context, _ string, turn Turn) (reply TurnReply, err error) {
	fate, comes, goes := o.begin()
	time.Sleep(comes)
	if fate >= o.flaky/2 {
		reply = o.commit(turn)
	}
	time.Sleep(goes)
	if fate < o.flaky {
		reply, err = TurnReply{}, errTurn
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns--
	return reply, err
}

func (o *flakyOutbox) begin() (fate float64, comes, goes time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns++
	o.peak = max(o.peak, o.turns)
	millis := func(n int) time.Duration { return time.Duration(o.random.IntN(n)) * time.Millisecond }
	return o.random.Float64(), millis(30), millis(5)
}

func (o *flakyOutbox) commit(turn Turn) (reply TurnReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range turn.Settle {
		rows, isHeld := o.claims[s.Row.ClaimID]
		settled, isOfIt := rows[s.Row.IntentID]
		if !isHeld || !isOfIt || settled {
			reply.Refused = append(reply.Refused, i)
			continue
		}
		rows[s.Row.IntentID] = true
		o.ended[s.Row.IntentID]++
	}
	for _, claim := range turn.Finish {
		o.finish(claim)
	}
	for _, claim := range turn.Claims {
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
	var left []claimable
	id := int64(len(o.ended)+len(o.claims)) + o.random.Int64N(1<<40)
	for _, row := range o.queue {
		place := Cursor{time.Unix(row.place, 0), row.intent}
		if reply.Found == claim.Limit || place.Compare(claim.After) <= 0 {
			left = append(left, row)
			continue
		}
		reply.Found++
		reply.Next = place
		reply.Rows = append(reply.Rows, &Row{
			ClaimID: id, IntentID: row.intent, Tries: 1, Attempt: 1, ClaimedAt: time.Now(),
			Tuple: dispatch.Tuple{ToolName: "sim/act", BusinessScope: strconv.FormatInt(row.intent, 10)},
		})
	}
	o.queue = left
	if reply.Found > 0 {
		o.claims[id] = map[int64]bool{}
	}
	for _, row := range reply.Rows {
		o.claims[id][row.IntentID] = false
	}
	return reply
}

func (o *flakyOutbox) Reclaim(_ context.Context, _, _, _ string, remembered []int64, _ Judge) (given []Settlement, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.turns > 0 {
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
	l.once, l.sagaMoved = true, func(Settlement) {}
	l.claims, l.turns = o, newTurns(o, "worker", func(time.Duration, error) {})
	l.lease = newLease(beatFunc(nil), "worker", WorkerSettings{Lease: 1000 * time.Hour}, time.Now())
	running, stop := context.WithCancel(t.Context())
	committed := make(chan struct{})
	go func() {
		l.turns.run(running)
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
