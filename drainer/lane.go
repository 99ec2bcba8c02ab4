package drainer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

const (
	// manyOutcomes is after how many outcomes the lane checks whether a batch is due.
	manyOutcomes = 64
	// maxBatchBytes bounds the responses that one batch stores for a lane.
	maxBatchBytes = 4 << 20
	// stalledAfter is long enough for several batches to fail, each by its timeout and after a backoff.
	stalledAfter = time.Minute
	// reclaimInterval is how often a lane looks for claims whose reply was lost. The look right
	// after a failure can come before such a claim's commit.
	reclaimInterval = 5 * time.Second
)

// databaseBackoff spaces a lane's batches while the database fails.
var databaseBackoff = dispatch.Backoff{Base: 200 * time.Millisecond, Cap: 5 * time.Second}

// lane drains one provider, through itself or through its fallback. It is a loop of one
// goroutine: its planner says what to claim and when, the committer settles and claims, and
// its pool sends the rows. That goroutine alone reads and writes the fields below the line.
type lane struct {
	route     route
	server    *upstream // of the provider that serves the rows
	committer *committer
	claims    claimStore
	pool      *pool
	observer  *observer
	log       *slog.Logger
	once      bool          // stop when nothing is due
	wake      chan struct{} // capacity 1; written by the listener
	pulse     pulse         // beats with every round of the loop
	stalled   atomic.Bool

	// ----
	planner     planner
	inFlight    inFlight
	settled     []Settlement // outcomes that no batch has taken yet
	emptied     []int64      // claims to finish: their rows are settled
	spare       spareRoom
	remembered  map[int64]int  // claim id → rows of it that no commit has settled yet
	outstanding int            // rows in the pool: they wait, are being sent, or have an outcome
	probes      map[string]int // of these rows and the unconfirmed outcomes, by the gate that they try
	failed      error          // why a batch failed; other batches may still be under way
	failures    int            // how often in a row the lane has backed off
	reclaimAt   time.Time
	claimFails  time.Time // when the first failed claim since the last success was started; zero while claims succeed
	settleFails time.Time // the same for settlements
	stoppedAt   time.Time // when the lane first saw that it has to stop
	shut        bool      // a lane that drains once has ended, but was not allowed to send all due rows
}

func newLane(route route, session *session) *lane {
	own, server := session.upstreams[route.provider], session.upstreams[route.server]
	planner := newPlanner(route, own.provider, server.provider)
	planner.claim.LooksLast = session.settings.Once
	return &lane{
		route:      route,
		server:     server,
		committer:  session.committer,
		claims:     session.store,
		pool:       newPool(route, session),
		observer:   session.observer,
		log:        session.log.With("provider", route.provider, "server", route.server),
		once:       session.settings.Once,
		wake:       make(chan struct{}, 1),
		planner:    planner,
		inFlight:   newInFlight(),
		remembered: map[int64]int{},
		probes:     map[string]int{},
		reclaimAt:  time.Now().Add(reclaimInterval),
	}
}

// route pairs the provider that owns the rows with the one that serves them. They
// differ for a fallback.
type route struct{ provider, server string }

func (r route) isDetour() bool { return r.provider != r.server }

// lifetimes are the three ends of a lane, each later than the one before:
// stop ends claiming, abort cancels what is in flight, giveUp ends settling.
type lifetimes struct{ stop, abort, giveUp context.Context }

// run drains until it is told to stop and everything it claimed is settled.
// The error says that it had to give up with outcomes unsettled.
func (l *lane) run(life lifetimes) error {
	defer l.pulse.end() // the session can outlive this lane by far, because of other lanes
	defer l.stall(false)
	l.pool.start(life)
	for !l.finished(life.stop) && life.giveUp.Err() == nil {
		l.round(life)
	}
	l.pool.close()
	if l.unsettled() {
		return context.Cause(life.giveUp) // an adapter that ignores its context is not waited for
	}
	l.pool.all.Wait()
	l.shut = l.isShut(life.stop)
	return nil
}

func (l *lane) round(life lifetimes) {
	if !l.adapterHangs(life) && !l.inFlight.overdue() {
		l.pulse.beat()
	}
	l.stall(l.isStalled())
	switch {
	case life.stop.Err() != nil:
		l.releaseWaiting(0, "")
	case l.pool.isBarred():
		l.releaseWaiting(fleetInterval, "provider_shut")
	}
	if l.await(life) {
		l.begin(life)
	}
	if l.failed != nil && !l.inFlight.any() {
		l.backOff(life)
	}
}

// load is the planner's input, as of now.
func (l *lane) load(stop context.Context) load {
	budget, budgetIn := l.server.budget()
	return load{
		now:          time.Now(),
		stopping:     stop.Err() != nil,
		outstanding:  l.outstanding,
		settled:      len(l.settled),
		emptied:      len(l.emptied),
		claiming:     len(l.inFlight.claiming),
		claimingRows: l.inFlight.rows(),
		settling:     len(l.inFlight.settling),
		isSearching:  l.inFlight.search != nil,
		isCommitFree: l.committer.idle.Load() > 0,
		isShared:     l.server.shared.Load(),
		isFailing:    l.failed != nil || l.failures > 0,
		reclaimsNext: l.reclaimIsDue(),
		isBarred:     l.pool.isBarred(),
		passage:      l.server.breaker.passage(),
		isProbed:     l.probes[l.route.server] > 0,
		operation:    l.operationToTry(),
		probeFor:     l.server.provider.Timeout + batchTimeout,
		slots:        l.server.slots.size(),
		budget:       budget,
		budgetIn:     budgetIn,
	}
}

// operationToTry returns an operation whose breaker may be probed now and of which this lane has no
// probe under way. On a detour, claimed rows probe the operations; see pool.tries.
func (l *lane) operationToTry() string {
	if l.route.isDetour() {
		return ""
	}
	for _, operation := range l.server.probes() {
		if l.probes[l.route.server+"/"+operation] == 0 {
			return operation
		}
	}
	return ""
}

// await returns true once a batch is worth its round trip, and false once a batch under way has
// ended. It also collects the outcomes that were too few to wake the lane.
func (l *lane) await(life lifetimes) (isDue bool) {
	isDue = l.sleep(life)
	l.gather()
	return isDue
}

func (l *lane) sleep(life lifetimes) (isDue bool) {
	timer := time.NewTimer(l.planner.wait(l.load(life.stop)))
	defer timer.Stop()
	wake, lingers := l.wake, len(l.settled) > 0
	var wakesAgain <-chan time.Time
	if l.inFlight.any() {
		wake = nil // the notification stays in the channel: the claim under way may have missed its row
		lingers = lingers || !l.load(life.stop).isQuiet()
	} else if ignored := l.planner.idle.ignoresFor(time.Now()); ignored > 0 {
		wake, wakesAgain = nil, time.After(ignored)
	}
	stopped := life.stop.Done()
	if life.stop.Err() != nil {
		stopped = nil
	}
	for l.gather(); !l.planner.isBatchDue(l.load(life.stop)); l.gather() {
		if len(l.settled) > 0 && !lingers {
			timer.Reset(linger)
			lingers = true
		}
		select {
		case <-l.pool.outcomes.whenThere(l.worthWaking(lingers)):
		case result := <-l.inFlight.claimed:
			l.onClaimed(result)
			return false
		case result := <-l.inFlight.settled:
			l.onSettled(result)
			return false
		case <-wakesAgain:
			wake = l.wake
		case <-wake:
			l.planner.idle.woken(time.Now())
			return true
		case <-stopped:
			return true
		case <-life.giveUp.Done():
			return true
		case <-timer.C:
			return true
		}
	}
	return true
}

// worthWaking is after how many outcomes the lane should wake up. The first outcome starts the
// linger timer; after that, the last one or manyOutcomes may make a batch due. It is 0 while a full
// batch waits: outcomes that are not collected count as outstanding, and so limit the claims.
func (l *lane) worthWaking(lingers bool) int {
	if !lingers {
		return 1
	}
	return max(0, min(l.outstanding, fullBatch-len(l.settled), manyOutcomes))
}

// gather collects the outcomes that have arrived, at most one batch of them.
func (l *lane) gather() {
	before := len(l.settled)
	l.settled = l.pool.outcomes.take(l.settled, max(0, fullBatch-before))
	if arrived := len(l.settled) - before; arrived > 0 {
		l.collected(arrived)
	}
}

func (l *lane) collected(rows int) {
	l.outstanding -= rows
	l.observer.ended(l.route.provider, rows)
}

// begin starts a batch that settles the collected outcomes and claims new rows, usually in one
// commit, and the search that is due. It does not wait for the results.
func (l *lane) begin(life lifetimes) {
	if load := l.load(life.stop); l.planner.maySearch(load) {
		l.inFlight.search = newShare(&l.inFlight)
		l.inFlight.search.claim = l.planner.nextSearch(load.now)
		l.committer.take(life.giveUp, l.inFlight.search)
	}
	if !l.load(life.stop).mayBegin() {
		return
	}
	begun := time.Now()
	if err := l.reclaim(life); err != nil {
		l.claimFails = cmp.Or(l.claimFails, begun)
		l.fail(err)
		return
	}
	share := l.nextShare(life.stop)
	if !share.settles() && !share.claims() {
		l.succeeded()
		return
	}
	l.inFlight.add(share)
	l.committer.take(life.giveUp, share)
}

func (l *lane) nextShare(stop context.Context) *share {
	share, load := newShare(&l.inFlight), l.load(stop)
	if l.planner.maySettle(load) {
		share.settle = l.takeSettled()
		share.finish = append(l.ended(share.settle), l.emptied...)
		l.emptied = nil
	}
	if l.planner.mayClaim(load) {
		share.claim = l.planner.nextClaim(load)
	}
	if load.isQuiet() && len(share.settle) == 0 {
		l.planner.prefetch = 0 // no row has ended since the last batch
	}
	return share
}

// takeSettled takes outcomes for one batch. Each failure in a row halves their number, since a batch
// may be too large for its timeout.
func (l *lane) takeSettled() []Settlement {
	most := min(len(l.settled), max(1, fullBatch>>l.failures))
	taken := firstBytes(l.settled[:most], maxBatchBytes)
	l.settled = append(l.spare.take(), l.settled[len(taken):]...)
	return taken
}

// firstBytes returns the first settlements whose responses have at most limit bytes together, so
// that they reach the database well within the timeout. It returns at least one.
func firstBytes(settled []Settlement, limit int) []Settlement {
	bytes := 0
	for i := range settled {
		bytes += len(settled[i].Result.Response)
		if bytes > limit && i > 0 {
			return settled[:i]
		}
	}
	return settled
}

// ended lists the claims whose last rows are among these settlements.
func (l *lane) ended(settle []Settlement) []int64 {
	var ended []int64
	left := map[int64]int{}
	for i := range settle {
		claim := settle[i].Row.ClaimID
		if _, counted := left[claim]; !counted {
			left[claim] = l.remembered[claim]
		}
		left[claim]--
		if left[claim] == 0 {
			ended = append(ended, claim)
		}
	}
	return ended
}

// onClaimed hands the claimed rows to the pool.
func (l *lane) onClaimed(result claimResult) {
	l.inFlight.endClaim(result.of)
	if result.err != nil {
		l.planner.claimFailed(result.of.claim, time.Since(result.of.begunAt), time.Now())
		l.claimFails = cmp.Or(l.claimFails, result.of.begunAt)
		l.fail(result.err)
		return
	}
	l.claimFails = time.Time{}
	l.planner.claimed(result.of.claim, result.of.begunAt, time.Now(), result.reply)
	rows := result.reply.Rows
	if len(rows) > 0 {
		failpoint.ClaimCommitted.Hit()
	}
	for _, row := range rows {
		l.remembered[row.ClaimID]++
		if row.Probe != "" {
			l.probes[row.Probe]++
		}
		l.pool.spend(row)
		l.pool.submit(row)
	}
	l.outstanding += len(rows)
	l.observer.claimed(l.route.provider, len(rows))
	l.succeeded()
}

// onSettled forgets the rows that a batch settled. After an error it forgets nothing: the commit
// may or may not have happened, and settling a row again is harmless.
func (l *lane) onSettled(result settleResult) {
	share := result.of
	l.inFlight.settling = without(l.inFlight.settling, share)
	if result.err != nil {
		for i := range share.settle {
			share.settle[i].Repeats = true
		}
		l.settled = append(share.settle, l.settled...) // older outcomes first
		for _, claim := range share.finish {
			if l.remembered[claim] == 0 { // other batches have settled all its rows
				l.emptied = append(l.emptied, claim)
			}
		}
		l.settleFails = cmp.Or(l.settleFails, share.begunAt)
		l.fail(result.err)
		return
	}
	l.settleFails = time.Time{}
	l.confirm(share, result.refused)
	l.succeeded()
}

func (l *lane) confirm(share *share, refused []Settlement) {
	// A refusal may be the echo of a settlement that was committed although its
	// reply was lost.
	refused = slices.DeleteFunc(refused, func(s Settlement) bool { return s.Repeats })
	l.observer.refused(l.route.provider, refused)
	for i := range refused {
		refused[i].Row.spans.refused()
	}
	if len(share.settle) > 0 {
		failpoint.SettleCommitted.Hit()
	}
	for i := range share.settle {
		l.forgetRow(share.settle[i].Row, share.finish)
		share.settle[i].Row.spans.settled()
	}
	for _, claim := range share.finish {
		delete(l.remembered, claim)
	}
	l.planner.settled(len(share.settle), l.server.breaker.passage())
	l.spare.put(share.settle)
}

// forgetRow leaves it to the next batch to finish a claim whose last rows were settled by several
// concurrent batches: none of them could know that the others would succeed.
func (l *lane) forgetRow(row *Row, finished []int64) {
	if l.probes[row.Probe] > 0 { // a row that became a probe after its claim was not counted
		l.probes[row.Probe]--
	}
	l.remembered[row.ClaimID]--
	if l.remembered[row.ClaimID] == 0 && !slices.Contains(finished, row.ClaimID) {
		l.emptied = append(l.emptied, row.ClaimID)
	}
}

// fail records why a batch failed. No batch is started from then on until the results of all batches
// under way are known.
func (l *lane) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// succeeded records that the database answers, once no batch is in doubt any more.
func (l *lane) succeeded() {
	if l.inFlight.any() || l.failed != nil {
		return
	}
	if l.failures > 0 {
		l.log.Info("database is back", "failed_batches", l.failures)
	}
	l.failures = 0
}

// backOff pauses while the database fails. Outcomes keep arriving meanwhile, and are kept until a
// batch settles them.
func (l *lane) backOff(life lifetimes) {
	err := l.failed
	l.failed = nil
	l.failures++
	l.planner.prefetch = 0 // a smaller batch may succeed
	if l.failures == 1 && !errors.Is(err, context.Canceled) {
		l.log.Warn("batch failed; retrying with backoff, outcomes are kept", "error", err)
	}
	pause(life.giveUp, databaseBackoff.Delay(l.failures, databaseBackoff.Base/2, rand.Float64()))
}

// reclaim releases rows that a batch claimed although its reply was lost. Only the lane itself can
// do so, and only between batches: then it knows all claims whose reply arrived.
func (l *lane) reclaim(life lifetimes) error {
	// The claims of a batch under way are not lost. mayBegin was asked earlier, so it does not
	// rule out such a batch.
	if l.inFlight.any() || (l.failures == 0 && !l.reclaimIsDue()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(life.giveUp, batchTimeout)
	defer cancel()
	remembered := slices.Collect(maps.Keys(l.remembered))
	released, err := l.claims.Reclaim(ctx, l.committer.worker, l.route.provider, l.route.server, remembered, l.releaseLost)
	if err != nil {
		return err
	}
	if len(released) > 0 {
		l.log.Warn("gave back rows whose claim's reply was lost", "rows", len(released))
		l.planner.scan.requestLook()
	}
	l.reclaimAt = time.Now().Add(reclaimInterval)
	return nil
}

func (l *lane) reclaimIsDue() bool { return !time.Now().Before(l.reclaimAt) }

// releaseLost releases a row of a claim whose reply the lane never received. The row may have been
// claimed as the probe of the provider or of its operation, so it gives up that right, and another
// worker may probe. On a detour it does not, since the fallback's own lane probes the fallback's
// operations. A lookup is delayed until the last send must have ended: the lost claim may have
// turned the row into a lookup, and its reply would have asked for the same delay.
func (l *lane) releaseLost(row *Row) (Settlement, bool) {
	if l.probes[l.route.server] == 0 {
		row.Probe = l.route.server
	}
	var delay time.Duration
	_, policy, configured := l.pool.find(row)
	if configured && row.Lookup && policy.Lookup != nil {
		delay = policy.UntilDrained(row.History(time.Time{}, time.Now()))
	}
	released := l.pool.release(row, delay, "reply_lost")
	if operation := l.route.server + "/" + operationFor(row, policy); !l.route.isDetour() && l.probes[operation] == 0 {
		released.Breakers = append(released.Breakers, BreakerChange{Gate: operation, Open: true, Probe: true})
	}
	return released, true
}

// releaseWaiting releases the rows that no dispatcher has taken, so that other workers can claim
// them at once. A probe stays, because it may pass the shut gate.
func (l *lane) releaseWaiting(delay time.Duration, class string) {
	var probes []*Row
	for row := l.pool.turns.take(); row != nil; row = l.pool.turns.take() {
		if row.Probe == l.route.server && class != "" {
			probes = append(probes, row)
			continue
		}
		row.forgetIntent()
		l.settled = append(l.settled, l.pool.release(row, delay, class))
		l.collected(1)
	}
	for _, probe := range probes {
		l.pool.submit(probe)
	}
}

func (l *lane) finished(stop context.Context) bool {
	if l.unsettled() {
		return false
	}
	return stop.Err() != nil || (l.once && (l.planner.scan.nothing || l.pool.isBarred()))
}

// unsettled reports whether rows are left to send or to settle. A batch in doubt counts, since it may
// have claimed rows.
func (l *lane) unsettled() bool {
	return l.outstanding > 0 || len(l.settled) > 0 || len(l.emptied) > 0 || l.inFlight.any() || l.failures > 0
}

// isShut reports whether a lane that drains once has ended although due rows may be left that it was
// not allowed to send.
func (l *lane) isShut(stop context.Context) bool {
	return l.once && stop.Err() == nil && (!l.planner.scan.nothing || l.server.breaker.passage() != passRows)
}

// stall records whether the lane makes no progress. Heartbeats cannot show that: they may succeed
// while all batches fail.
func (l *lane) stall(stalled bool) {
	if l.stalled.Swap(stalled) != stalled {
		l.observer.stalled(l.route.provider, stalled)
	}
}

func (l *lane) isStalled() bool {
	lasts := func(since time.Time) bool { return !since.IsZero() && time.Since(since) > stalledAfter }
	return lasts(l.claimFails) || lasts(l.settleFails)
}

// adapterHangs reports that an adapter ignores the end of its context. Only a restart helps then.
// Outcomes that wait for the database to come back do not count.
func (l *lane) adapterHangs(life lifetimes) bool {
	if life.stop.Err() == nil {
		return false
	}
	if l.stoppedAt.IsZero() {
		l.stoppedAt = time.Now()
	}
	isOver := life.abort.Err() != nil || time.Since(l.stoppedAt) > l.pool.longestDispatch()
	return isOver && l.outstanding > l.pool.outcomes.len()
}

// inFlight holds the batches of a lane whose results are not all known. A batch may have claimed
// already and still be settling.
type inFlight struct {
	claiming, settling []*share
	search             *share // nil if none is under way
	claimed            chan claimResult
	settled            chan settleResult
}

func newInFlight() inFlight {
	return inFlight{claimed: make(chan claimResult, batchesAtOnce+1), settled: make(chan settleResult, batchesAtOnce)}
}

func (f *inFlight) any() bool { return len(f.claiming) > 0 || len(f.settling) > 0 || f.search != nil }

func (f *inFlight) add(share *share) {
	if share.claims() {
		f.claiming = append(f.claiming, share)
	}
	if share.settles() {
		f.settling = append(f.settling, share)
	}
}

func (f *inFlight) endClaim(ended *share) {
	if f.search == ended {
		f.search = nil
		return
	}
	f.claiming = without(f.claiming, ended)
}

func without(shares []*share, ended *share) []*share {
	return slices.DeleteFunc(shares, func(s *share) bool { return s == ended })
}

// rows is the most rows that the claims under way can return, without those of a search.
func (f *inFlight) rows() (rows int) {
	for _, share := range f.claiming {
		rows += share.claim.Limit
	}
	return rows
}

// overdue reports a batch that was started so long ago that no committer can still be working on it.
func (f *inFlight) overdue() bool {
	all := slices.Concat(f.claiming, f.settling)
	if f.search != nil {
		all = append(all, f.search)
	}
	return slices.ContainsFunc(all, func(s *share) bool {
		return time.Since(s.begunAt) > 2*batchTimeout // one to wait for a committer, one for the batch itself
	})
}

// spareRoom keeps slices of settled outcomes, to be used again.
type spareRoom [][]Settlement

func (s *spareRoom) take() (room []Settlement) {
	if last := len(*s) - 1; last >= 0 {
		room, *s = (*s)[last], (*s)[:last]
	}
	return room
}

// put clears the slice first, so that large responses can be freed.
func (s *spareRoom) put(room []Settlement) {
	clear(room[:cap(room)])
	*s = append(*s, room[:0])
}
