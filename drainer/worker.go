package drainer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

// pool sends the rows of one lane: at most as many at once as its provider's concurrency.
type pool struct {
	dispatchers
	route     route
	server    *upstream
	upstreams map[string]*upstream // of all providers: a row may have to go to a fallback
	claims    claimStore
	worker    string
	closed    *closedRuns
	lease     *lease
	observer  *observer
	tracing   *tracing
	secrets   *Redactor
	outcomes  *outcomes
}

func newPool(route route, session *session) *pool {
	return &pool{
		route:     route,
		server:    session.upstreams[route.server],
		upstreams: session.upstreams,
		claims:    session.store,
		worker:    session.committer.worker,
		closed:    session.closed,
		lease:     session.lease,
		observer:  session.observer,
		tracing:   session.tracing,
		secrets:   session.settings.Secrets,
		outcomes:  newOutcomes(),
	}
}

func (p *pool) start(life lifetimes) {
	p.assemble(p.server.provider.Concurrency, func(next func() *Row) { p.dispatchAll(life, next) })
}

// dispatchAll is one dispatcher. It has a context of its own: below a common one
// all attempts would wait for each other's lock, twice each.
func (p *pool) dispatchAll(life lifetimes, next func() *Row) {
	var done context.CancelFunc
	life.abort, done = context.WithCancel(life.abort)
	defer done()
	for row := next(); row != nil; row = next() {
		outcome := p.attempt(life, row)
		outcome.Row.forgetIntent()
		p.outcomes.put(outcome)
	}
}

// isBarred reports that rows may be due and none of them may be sent for now.
func (p *pool) isBarred() bool {
	passage := p.server.breaker.passage()
	return passage == passPaused || passage == passNothing || p.isPaused() || p.server.slots.size() == 0
}

// isPaused asks the rows' own provider: a pause holds for its fallback as well.
func (p *pool) isPaused() bool {
	return p.upstreams[p.route.provider].breaker.passage() == passPaused
}

// spend takes a claimed row off its provider's budget.
func (p *pool) spend(row *Row) {
	if upstream, configured := p.upstreams[row.server()]; configured {
		upstream.spend()
	}
}

// longestDispatch is of all providers: a lane also sends rows to fallbacks.
func (p *pool) longestDispatch() (longest time.Duration) {
	for _, upstream := range p.upstreams {
		longest = max(longest, upstream.provider.Timeout)
	}
	return longest
}

// dispatchers is an elastic set of at most `most` goroutines. A waiting row wakes or starts
// one, and a goroutine that takes a row and leaves others behind wakes the next. While one is
// on its way, no other is woken. So a goroutine that is held up has others beside it, and
// where nothing holds them up about as many as there are processors do all the work:
// more would only wake each other.
type dispatchers struct {
	turns fairQueue
	most  int // 0 until there may be any
	work  func(next func() *Row)

	mu        sync.Mutex
	present   int
	idle      []chan struct{} // each waits for a call of its own; the last to rest is the first to be called
	waking    bool
	dismissed bool
	all       sync.WaitGroup
}

// assemble is called before the first row is handed out. work ends when there is no next row.
func (d *dispatchers) assemble(most int, work func(next func() *Row)) {
	d.most, d.work = most, work
}

func (d *dispatchers) submit(row *Row) {
	d.turns.put(row)
	d.wakeOne()
}

// waiting is how many rows no dispatcher has begun.
func (d *dispatchers) waiting() int { return d.turns.len() }

// close lets them end what was handed to them. No row may be handed out after it.
func (d *dispatchers) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dismissed = true
	for _, called := range d.idle {
		close(called)
	}
	d.idle = nil
}

func (d *dispatchers) wakeOne() {
	if d.waiting() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.idle) - 1
	switch {
	case d.waking:
	case last >= 0:
		d.waking = true
		d.idle[last] <- struct{}{}
		d.idle = d.idle[:last]
	case d.present < d.most:
		d.waking = true
		d.present++
		d.all.Go(d.serve)
	}
}

func (d *dispatchers) serve() {
	called := make(chan struct{}, 1)
	d.awake()
	d.work(func() *Row { return d.next(called) })
}

// next is nil after dismiss, once no row waits.
func (d *dispatchers) next(called chan struct{}) *Row {
	for {
		if row := d.turns.take(); row != nil {
			d.wakeOne()
			return row
		}
		if !d.waitForCall(called) {
			return d.turns.take() // what came before they were dismissed
		}
	}
}

// waitForCall calls once more when it can be called itself: a row that was handed out before
// that may have counted on this dispatcher.
func (d *dispatchers) waitForCall(called chan struct{}) (again bool) {
	if !d.addIdle(called) {
		return false
	}
	d.wakeOne()
	_, again = <-called
	d.awake()
	return again
}

func (d *dispatchers) addIdle(called chan struct{}) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dismissed {
		return false
	}
	d.idle = append(d.idle, called)
	return true
}

func (d *dispatchers) awake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waking = false
}

// unconfiguredDelay keeps a row that no tool is configured for from spinning,
// while a worker that knows the tool can still pick it up.
const unconfiguredDelay = time.Minute

// unknownLookupAfter is how long a row in doubt waits, since it may first have
// been sent, for a worker that knows how to look it up.
const unknownLookupAfter = 15 * time.Minute

// attempt dispatches one row and decides what follows. It never returns
// without a settlement: every claimed row is accounted for.
func (p *pool) attempt(life lifetimes, row *Row) Settlement {
	upstream, policy, configured := p.find(row)
	row = answerable(row, policy)
	switch {
	case !configured:
		return p.park(row)
	case row.isAtEither() && policy.Class != dispatch.ReadOnly:
		return p.abandon(row)
	case row.Closed:
		return p.halt(row, policy)
	case lacksLookup(row, policy):
		return p.release(row, unconfiguredDelay, "lookup_unconfigured")
	}
	if shut := upstream.shut(row, operationFor(row, policy)); shut != nil && !p.tries(life.abort, upstream, row, shut) {
		return p.parkUntilOpen(row, shut)
	}
	if !upstream.slots.acquire() {
		return p.release(row, fleetInterval, "no_share")
	}
	defer upstream.slots.release()
	if withheld, is := p.releaseUnsendable(life, upstream, policy, row); is {
		return withheld
	}
	failpoint.BeforeSend.Hit()
	return p.send(life.abort, upstream, policy, row)
}

// park puts a row of an operation that its provider does not have here where no claim
// finds it, until a worker comes that knows it. A row in doubt whose fallback is gone
// stays in the lane, for that fallback may be configured elsewhere.
func (p *pool) park(row *Row) Settlement {
	parked := p.release(row, unconfiguredDelay, "unconfigured_tool")
	provider, operation := row.Tuple.Provider(), row.Tuple.Operation()
	p.observer.unconfigured(provider, row)
	own, served := p.upstreams[provider]
	if !served || (row.Via != "" && row.Via != provider && row.MaybeApplied) {
		return parked
	}
	if _, known := own.provider.Tools[operation]; !known {
		parked.Park = provider + "/" + operation
	}
	return parked
}

// parkUntilOpen parks a row whose operation is shut, so that its neighbours do not wait. At a fallback
// it waits in its own provider's lane, for that provider may come back first.
func (p *pool) parkUntilOpen(row *Row, shut *breaker) Settlement {
	parked := p.release(row, fleetInterval, "circuit_open")
	parked.Park = shut.name
	if row.server() != row.Tuple.Provider() {
		parked.Park, parked.ParkFor = row.Tuple.Provider(), min(max(fleetInterval, shut.remaining()), refusalPause)
	}
	return parked
}

// tries lets a row try its fallback's operation. The fallback's own lane tries an operation with a
// parked row, and may have none. No claim knows the operations of rows in the lane of another provider, so the row
// becomes the probe once it is claimed. Without an answer from the database the turn is lost until its time is over.
func (p *pool) tries(ctx context.Context, upstream *upstream, row *Row, shut *breaker) bool {
	if row.server() == row.Tuple.Provider() || p.isPaused() || !upstream.admits(row) || !shut.takeTurn() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	if is, err := p.claims.TryOperation(ctx, p.worker, shut.name, upstream.provider.Timeout+batchTimeout); err != nil || !is {
		return false
	}
	row.Probe = shut.name
	return true
}

// unknownOperation ends what was parked for too long. Nothing was sent of it here;
// what was in doubt before stays so.
func unknownOperation(row *Row) (Settlement, bool) {
	result := dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unknown_operation", Unsent: true}
	now := time.Now()
	return Settlement{
		Row:        row,
		FinishedAt: now,
		Result:     result,
		Decision:   dispatch.Policy{}.Halt(row.History(time.Time{}, now)),
	}, true
}

// releaseUnsendable is asked right before a row is sent: it may have waited for a slot.
func (p *pool) releaseUnsendable(life lifetimes, upstream *upstream, policy dispatch.Policy, row *Row) (Settlement, bool) {
	shut := upstream.shut(row, operationFor(row, policy))
	switch {
	case life.stop.Err() != nil || life.abort.Err() != nil || !p.lease.holds():
		return p.release(row, 0, ""), true
	case p.isPaused():
		return p.release(row, fleetInterval, "provider_paused"), true
	case !upstream.admits(row):
		return p.release(row, fleetInterval, "circuit_open"), true
	case shut != nil:
		return p.parkUntilOpen(row, shut), true
	case p.closed.contains(row):
		return p.release(row, 0, "run_closed"), true // the claim that finds it again stops it
	}
	return Settlement{}, false
}

func (p *pool) send(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) Settlement {
	ctx, row.spans = p.tracing.begin(ctx, row, policy)
	started := time.Now()
	result, changes := p.dispatch(ctx, upstream, policy, row)
	if ctx.Err() != nil && result.Outcome == dispatch.NotSent {
		return p.release(row, 0, "")
	}
	finished := time.Now()
	history := row.History(started, finished)
	if upstream.spares(row, result, history.Tries >= policy.MaxAttempts) {
		history.Tries--
	}
	settlement := Settlement{
		Row:        row,
		StartedAt:  started,
		FinishedAt: finished,
		Result:     result,
		Decision:   policy.Decide(history, result, rand.Float64()),
		Breakers:   changes,
		Acts:       policy.Class != dispatch.ReadOnly,
	}
	settlement.setConsequences(policy)
	p.observer.attempted(&settlement, operationFor(row, policy))
	row.spans.dispatched(&settlement)
	return settlement
}

// find returns the upstream that is to serve a row, and the policy of its tool. It reports false for a tool, or a
// fallback, that is not configured here.
func (p *pool) find(row *Row) (*upstream, dispatch.Policy, bool) {
	upstream, configured := p.upstreams[row.server()]
	if !configured {
		return nil, dispatch.Policy{}, false
	}
	policy, configured := upstream.provider.Tools[row.Tuple.Operation()]
	return upstream, policy, configured
}

// answerable turns a question that no tool answers into the act itself, where
// repeating that is as good as asking. A forward step of a run that is rolled back
// is never repeated: the saga may have passed it by.
func answerable(row *Row, policy dispatch.Policy) *Row {
	isClosed := row.InSaga && row.Undoes == nil
	if !row.Lookup || isClosed || policy.Lookup != nil || policy.Class == "" || policy.Class == dispatch.NonIdempotent {
		return row
	}
	acting := *row
	acting.Lookup = false
	if !policy.MayStillSend(acting.History(time.Time{}, time.Now())) {
		return row
	}
	return &acting
}

// lacksLookup holds for a while for a row that waits to be looked up by a tool
// that is not configured here, or not any more. A saga cannot wait.
func lacksLookup(row *Row, policy dispatch.Policy) bool {
	return row.Lookup && policy.Lookup == nil && !row.InSaga && elapsed(row.ClaimedAt)+row.SinceFirstSend < unknownLookupAfter
}

// dispatch sends a row, unless that could do harm, and reports what its end
// means for breakers.
func (p *pool) dispatch(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) (dispatch.Result, []BreakerChange) {
	if class := refusal(row, policy); class != "" {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}, upstream.unproven(row)
	}
	if violation := violationOf(row, policy); violation != nil {
		result := dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_schema", Unsent: true, Problem: violation}
		return result, upstream.unproven(row)
	}
	result, panicked := p.call(ctx, &upstream.provider, requestFor(row, policy), row)
	if panicked || ctx.Err() != nil { // our own doing: that says nothing of the provider
		return result, upstream.unproven(row)
	}
	believed := result // but the history keeps what the provider asked for
	believed.RetryAfter = policy.Believed(result.RetryAfter)
	weighed, changes := upstream.attribute(ctx, row, operationFor(row, policy), believed)
	weighed.RetryAfter = max(weighed.RetryAfter, result.RetryAfter)
	return weighed, changes
}

// refusal says why a claimed row must not leave any more; it is empty if it may.
func refusal(row *Row, policy dispatch.Policy) string {
	switch {
	case row.Lookup && policy.Lookup == nil:
		return "lookup_unconfigured"
	case row.Lookup || policy.MayStillSend(row.History(time.Time{}, time.Now())):
		return ""
	case policy.Class == dispatch.NonIdempotent:
		return "not_repeatable"
	}
	return "key_ttl_expired"
}

// violationOf looks at what is to be sent. A lookup sends nothing that acts.
func violationOf(row *Row, policy dispatch.Policy) *dispatch.Problem {
	if row.Lookup || policy.Payload == nil {
		return nil
	}
	return policy.Payload.Violation(row.Payload)
}

func requestFor(row *Row, policy dispatch.Policy) dispatch.Request {
	request := dispatch.Request{
		Tuple:          row.Tuple,
		IdempotencyKey: row.idempotencyKey(),
		Payload:        row.Payload,
		Headers:        row.spans.continued(row.Headers),
		Attempt:        row.Attempt,
	}
	if row.Lookup {
		request.Tuple.ToolName = row.server() + "/" + policy.Lookup.Operation
		request.ProviderRef = row.ProviderRef
	}
	return request
}

// operationFor is the operation that is called: for a lookup, the tool that answers it.
func operationFor(row *Row, policy dispatch.Policy) string {
	if row.Lookup && policy.Lookup != nil {
		return policy.Lookup.Operation
	}
	return row.Tuple.Operation()
}

func (p *pool) call(ctx context.Context, provider *dispatch.Provider, request dispatch.Request, row *Row) (result dispatch.Result, panicked bool) {
	defer func() {
		if cause := recover(); cause != nil {
			p.observer.panicked(provider.Name, row, fmt.Sprintf("%T", cause), debug.Stack())
			result, panicked = dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: "panic"}, true
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, provider.Timeout)
	defer cancel()
	result = bounded(p.secrets.result(provider.Adapter.Dispatch(ctx, request)))
	failpoint.AfterReply.Hit()
	return result, false
}

// release returns a row to the queue unsent. A probe gives up its right to try the provider.
func (p *pool) release(row *Row, delay time.Duration, class string) Settlement {
	settlement := unsent(row, delay, class)
	if upstream, known := p.upstreams[row.server()]; known {
		settlement.Breakers = upstream.unproven(row)
	}
	return settlement
}

// unsent ends an attempt that sent nothing: it costs none of the row's tries.
func unsent(row *Row, delay time.Duration, class string) Settlement {
	result := dispatch.Result{Outcome: dispatch.Released, RetryAfter: delay, ErrorClass: class}
	now := time.Now()
	return Settlement{
		Row:        row,
		FinishedAt: now,
		Result:     result,
		Decision:   dispatch.Policy{}.Decide(row.History(time.Time{}, now), result, 0),
	}
}

// lose judges a row whose worker died: it may have been sent as soon as it was
// claimed.
func lose(row *Row, policy dispatch.Policy) Settlement {
	result := dispatch.Result{Outcome: dispatch.Lost, ErrorClass: "worker_lost"}
	now := time.Now()
	settlement := Settlement{
		Row:        row,
		StartedAt:  row.ClaimedAt,
		FinishedAt: now,
		Result:     result,
		Decision:   policy.Decide(row.History(row.ClaimedAt, now), result, rand.Float64()),
	}
	settlement.setConsequences(policy)
	return settlement
}

// halt ends the attempts of a forward row whose run is rolled back: nothing is sent
// any more, but what may have been applied must be known before it is undone.
func (p *pool) halt(row *Row, policy dispatch.Policy) Settlement {
	halted := p.release(row, 0, "run_compensating")
	halted.Decision = policy.Halt(row.History(time.Time{}, halted.FinishedAt))
	return halted
}

// abandon ends a row that its provider or the fallback may have applied. No key and no lookup at
// one of them tells what the other did.
func (p *pool) abandon(row *Row) Settlement {
	acted := *row
	acted.Lookup = false // so that the record says where it may have been applied
	abandoned := lose(&acted, dispatch.Policy{Class: dispatch.NonIdempotent})
	abandoned.Result.ErrorClass = "not_repeatable"
	if upstream, known := p.upstreams[row.server()]; known {
		abandoned.Breakers = upstream.unproven(row)
	}
	return abandoned
}

// setConsequences says what the end of a forward step means for others. An undo that
// fails is never compensated itself. What was refused on this side has nothing to do
// with the steps that its run has completed: who may enqueue under the name of a run
// must not take it back with a payload that no provider ever sees.
func (s *Settlement) setConsequences(policy dispatch.Policy) {
	s.Foreign = policy.FirstReplayOpens && s.firstReplay()
	switch {
	case s.Row.Undoes != nil || s.Decision.Status != dispatch.StatusFailed:
	case s.Result.Unsent:
		s.BeginsSaga = policy.RefusalBeginsSaga
		s.Refused = !policy.RefusalBeginsSaga
	default:
		s.BeginsSaga = policy.BeginsSaga
	}
}

// outcomes holds settlements until their lane collects them. A dispatcher never waits to put
// one down, and the lane is woken only for as many as it asks for: to be woken for each
// would cost both sides more than the outcome itself.
type outcomes struct {
	enough chan struct{} // capacity 1; what it holds may answer an earlier question

	mu      sync.Mutex
	waiting []Settlement
	wanted  int // how many are enough; 0 for none ever
}

func newOutcomes() *outcomes { return &outcomes{enough: make(chan struct{}, 1)} }

func (o *outcomes) put(outcome Settlement) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, outcome)
	o.signal()
}

// whenThere returns a channel that is signalled once as many outcomes wait. A new
// call replaces the number of the call before.
func (o *outcomes) whenThere(wanted int) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = wanted
	o.signal()
	return o.enough
}

func (o *outcomes) signal() {
	if o.wanted == 0 || len(o.waiting) < o.wanted {
		return
	}
	o.wanted = 0
	select {
	case o.enough <- struct{}{}:
	default:
	}
}

// take moves the oldest outcomes, at most this many.
func (o *outcomes) take(to []Settlement, most int) []Settlement {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := min(most, len(o.waiting))
	to = append(to, o.waiting[:taken]...)
	left := copy(o.waiting, o.waiting[taken:])
	clear(o.waiting[left:]) // responses can be large
	o.waiting = o.waiting[:left]
	return to
}

func (o *outcomes) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting)
}
