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

// pool sends the rows of one lane, at most `concurrency` of its provider at a time.
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

// dispatchAll is the loop of one dispatcher. It derives a context of its own: if all attempts derived
// theirs from a common one, each would take that context's lock twice.
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

// isPaused asks the rows' own provider. While it is paused, its fallback serves no row either.
func (p *pool) isPaused() bool {
	return p.upstreams[p.route.provider].breaker.passage() == passPaused
}

// spend counts a claimed row against the rate limit of the provider that serves it.
func (p *pool) spend(row *Row) {
	if upstream, configured := p.upstreams[row.server()]; configured {
		upstream.spend()
	}
}

// longestDispatch is the longest timeout of all providers, since a lane also sends rows to fallbacks.
func (p *pool) longestDispatch() (longest time.Duration) {
	for _, upstream := range p.upstreams {
		longest = max(longest, upstream.provider.Timeout)
	}
	return longest
}

// dispatchers is an elastic set of at most `most` goroutines. A waiting row wakes or starts one. A
// goroutine that takes a row while others wait wakes the next goroutine. Only one is being woken
// at a time. So while goroutines wait for providers, more of them run; and if none has to wait,
// about as many as there are processors do all the work, since more would only wake each other.
type dispatchers struct {
	turns fairQueue
	most  int // 0 before assemble
	work  func(next func() *Row)

	mu        sync.Mutex
	present   int
	idle      []chan struct{} // one of each goroutine without a row; the last one in is woken first
	waking    bool
	dismissed bool
	all       sync.WaitGroup
}

// assemble must be called before the first submit. work returns when next returns nil.
func (d *dispatchers) assemble(most int, work func(next func() *Row)) {
	d.most, d.work = most, work
}

func (d *dispatchers) submit(row *Row) {
	d.turns.put(row)
	d.wakeOne()
}

// waiting is how many rows no dispatcher has taken.
func (d *dispatchers) waiting() int { return d.turns.len() }

// close ends the dispatchers once they have sent all submitted rows. No row may be submitted after it.
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

// next returns nil after close, once no row waits.
func (d *dispatchers) next(called chan struct{}) *Row {
	for {
		if row := d.turns.take(); row != nil {
			d.wakeOne()
			return row
		}
		if !d.waitForCall(called) {
			return d.turns.take() // a row that was submitted before close
		}
	}
}

// waitForCall wakes another dispatcher, if rows wait, right after it became idle itself: a row that was
// submitted just before may have found no idle dispatcher.
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

// unconfiguredDelay is when a row without a configured tool is due again. It is long enough not to spin,
// and short enough for a worker that knows the tool to pick the row up.
const unconfiguredDelay = time.Minute

// unknownLookupAfter is how long a row in doubt waits for a worker that knows its lookup, counted from the
// time when it may first have been sent.
const unknownLookupAfter = 15 * time.Minute

// attempt dispatches one row and decides what follows. It returns a settlement in every case, so that
// every claimed row is accounted for.
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

// park puts a row whose operation is not configured here where no claim finds it, until a worker
// that knows the operation unparks it. A row in doubt whose fallback is gone stays in the lane,
// since another worker may have that fallback.
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

// parkUntilOpen parks a row whose operation's breaker is open, so that rows of other operations do not
// wait behind it. A row at a fallback waits in its own provider's lane, since that provider may recover first.
func (p *pool) parkUntilOpen(row *Row, shut *breaker) Settlement {
	parked := p.release(row, fleetInterval, "circuit_open")
	parked.Park = shut.name
	if row.server() != row.Tuple.Provider() {
		parked.Park, parked.ParkFor = row.Tuple.Provider(), min(max(fleetInterval, shut.remaining()), refusalPause)
	}
	return parked
}

// tries makes a row that takes a detour the probe of its fallback's operation. The fallback's own lane probes with
// parked rows, and may have none. A claim cannot choose the probe here, since it does not know the operations of rows
// in another provider's lane. If the database does not answer, no probe is made before the turn expires.
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

// unknownOperation ends a row that was parked for too long. This worker sent nothing; a row that was
// in doubt before stays in doubt.
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

// releaseUnsendable checks everything once more right before a row is sent, since the row may have waited
// long for a slot.
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
		return p.release(row, 0, "run_closed"), true // the next claim of the row cancels it
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

// answerable turns a lookup for which no tool is configured into a repetition of the request, if repeating
// is as safe as asking. A forward step of a run that is rolled back is never repeated: the saga
// may have skipped it already.
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

// lacksLookup reports whether a row should wait for a worker on which its lookup is configured. It waits for
// unknownLookupAfter at most, and not at all in a saga, which waits for its result.
func lacksLookup(row *Row, policy dispatch.Policy) bool {
	return row.Lookup && policy.Lookup == nil && !row.InSaga && elapsed(row.ClaimedAt)+row.SinceFirstSend < unknownLookupAfter
}

// dispatch sends a row, unless that could repeat its effect or its payload is invalid. It also returns
// what the result means for breakers.
func (p *pool) dispatch(ctx context.Context, upstream *upstream, policy dispatch.Policy, row *Row) (dispatch.Result, []BreakerChange) {
	if class := refusal(row, policy); class != "" {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}, upstream.unproven(row)
	}
	if violation := violationOf(row, policy); violation != nil {
		result := dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: "payload_schema", Unsent: true, Problem: violation}
		return result, upstream.unproven(row)
	}
	result, panicked := p.call(ctx, &upstream.provider, requestFor(row, policy), row)
	if panicked || ctx.Err() != nil { // caused on this side: it says nothing about the provider
		return result, upstream.unproven(row)
	}
	believed := result // breakers believe a bounded Retry-After; the history keeps the provider's own
	believed.RetryAfter = policy.Believed(result.RetryAfter)
	weighed, changes := upstream.attribute(ctx, row, operationFor(row, policy), believed)
	weighed.RetryAfter = max(weighed.RetryAfter, result.RetryAfter)
	return weighed, changes
}

// refusal returns the error class of a claimed row that must not be sent any more, or "".
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

// violationOf checks the payload against its schema. A lookup does not send the payload.
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

// release returns a row to the queue unsent. A probe gives up its right to pass the breaker.
func (p *pool) release(row *Row, delay time.Duration, class string) Settlement {
	settlement := unsent(row, delay, class)
	if upstream, known := p.upstreams[row.server()]; known {
		settlement.Breakers = upstream.unproven(row)
	}
	return settlement
}

// unsent ends an attempt that sent nothing. It does not count against max_attempts.
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

// lose decides about a row whose worker died. It must be taken as sent from its claim on.
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

// halt ends the attempts of a forward row whose run is rolled back. It is not sent any more. If it may have
// been applied, that must be found out before it is undone.
func (p *pool) halt(row *Row, policy dispatch.Policy) Settlement {
	halted := p.release(row, 0, "run_compensating")
	halted.Decision = policy.Halt(row.History(time.Time{}, halted.FinishedAt))
	return halted
}

// abandon ends a row that either its provider or the fallback may have applied. Neither a key nor a lookup
// at one of them shows what the other did.
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

// setConsequences records what the end of a forward step means for its run and its operators. A failed undo
// is never compensated itself. By default, a request that drainer refused to send does not roll its run back:
// otherwise any login that may enqueue under a run's id could undo the run's completed steps with an invalid payload.
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

// outcomes holds settlements until their lane collects them. A dispatcher never waits to add one. The lane
// says for how many it wants to be woken: waking it for each would cost both sides more than the outcome itself.
type outcomes struct {
	enough chan struct{} // capacity 1; a signal in it may be meant for an earlier call of whenThere

	mu      sync.Mutex
	waiting []Settlement
	wanted  int // how many make a signal; 0 for no signal
}

func newOutcomes() *outcomes { return &outcomes{enough: make(chan struct{}, 1)} }

func (o *outcomes) put(outcome Settlement) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, outcome)
	o.signal()
}

// whenThere returns a channel that gets one signal when that many outcomes wait. A new call replaces the
// number of the call before.
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
