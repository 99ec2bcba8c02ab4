package row

import (
	"github.com/agentoutbox/drainer/dispatch"
)

// ended is an attempt that has ended.
type ended struct {
	past    Past
	began   Age
	outcome dispatch.Outcome
}

// settle settles an attempt under a claim, which a worker or the reaper remembers.
func (m Model) settle(s *State, claim uint8, e ended) {
	hasClaim := claim != 0
	isSettled := !hasClaim || s.Claims[claim-1].Settled
	if (m.keeps(ClaimFences) && !hasClaim) || (m.keeps(AttemptEndsOnce) && isSettled) {
		m.noteLate(s, e.outcome)
		return
	}
	m.end(s, e)
	if hasClaim {
		s.Claims[claim-1].Settled, s.Claims[claim-1].Past = true, Past{}
	}
}

// end appends the attempt, and requeues the row unless the attempt was the last.
func (m Model) end(s *State, e ended) {
	decision := m.decide(e.past, e.began, e.outcome)
	if !e.past.Lookup && e.outcome != dispatch.NotSent && e.outcome != dispatch.Released && e.outcome != dispatch.CredentialsRefused {
		e.past.Sent = max(e.past.Sent, e.began)
		s.FirstSent = max(s.FirstSent, e.began)
		if s.World.Accepted > 0 && !s.LostCommits { // else the acceptance was lost, too
			s.Since = max(s.Since, e.began)
		}
	}
	s.append(statusOf(decision.Status))
	s.Settled = !decision.Back()
	if decision.Back() {
		e.past.Tries, e.past.Maybe, e.past.Lookup = int8(decision.Tries), decision.MaybeApplied, decision.Lookup
		if decision.Lookup {
			e.past.Tries = min(e.past.Tries, LookupTries)
		}
		s.Queue = Queued{Is: true, Waits: decision.Delay >= untilDrained, Past: e.past}
		return
	}
	s.Incident = s.Newest == unknown && m.keeps(UnknownIsReported)
}

// noteLate records an effect that a refused settlement proves, unless the row is claimed again.
func (m Model) noteLate(s *State, outcome dispatch.Outcome) {
	isOpen := s.Queue.Is || s.Settled && s.Newest != completed
	if m.keeps(LateEvidence) && outcome == dispatch.Completed && isOpen {
		s.Queue = Queued{}
		s.append(completed)
		s.Settled, s.Incident = true, false
	}
}

func (s *State) append(status Status) {
	s.Newest = status
	s.Operator.Overtaken = s.Operator.Plan != None
}

// finish deletes a claim, all of whose rows are settled.
func (s *State) finish(slot int) {
	s.Claims[slot] = Claim{}
	for w := range s.Workers {
		if int(s.Workers[w].Claim) == slot+1 {
			s.Workers[w].Claim = 0
		}
	}
}

func (s *State) freeSlot() (int, bool) {
	for slot, claim := range s.Claims {
		if claim.Owner == NoOwner {
			return slot, true
		}
	}
	return 0, false
}

var workers = [2]string{"worker 1", "worker 2"}

// The two ways in which a worker settles its attempt.
const (
	settles        = "settles"
	settlesUnheard = "settles, and the reply is lost"
)

func owner(w int) Owner { return Owner(w + 1) }

func (n *next) worker(w int) {
	switch n.From.Workers[w].Phase {
	case Idle:
		n.claims(w)
	case Holding:
		n.attempts(w)
	case Waiting:
		n.hears(w)
	case Done:
		n.settles(w)
	}
	for slot, claim := range n.From.Claims {
		if claim.Owner == owner(w) && !claim.Locked {
			n.reclaims(w, slot)
			n.settlesTheRest(w, slot)
		}
	}
	n.livesAndDies(w)
}

func (n *next) claims(w int) {
	slot, free := n.From.freeSlot()
	isTwin := w > 0 && n.From.isBlank(0) // the first worker can do the same
	if !n.From.IsDue() || n.From.Workers[w].DeclaredDead || !free || isTwin {
		return
	}
	n.Add(workers[w], "claims", func(s *State) { s.claim(w, slot).hold(w, slot) })
	if !n.RepliesArrive {
		n.Chance(workers[w], "claims, and the reply is lost", func(s *State) { s.claim(w, slot) })
	}
	if n.Batched && n.From.Newest.Is() == "" {
		n.Chance(workers[w], "claims it with another row", func(s *State) {
			s.claim(w, slot).hold(w, slot)
			s.Claims[slot].Rest = true
		})
	}
}

// IsDue reports whether a claim would take the row.
func (s *State) IsDue() bool { return s.Queue.Is && !s.Queue.Waits }

// claim moves the row from the queue into a claim.
func (s *State) claim(w, slot int) *State {
	past := s.Queue.Past
	past.Tries++
	s.Queue = Queued{}
	s.Claims[slot] = Claim{Owner: owner(w), Began: Fresh, Past: past}
	return s
}

// hold is the arrival of the claim's reply.
func (s *State) hold(w, slot int) {
	s.Claims[slot].Known = true
	s.Workers[w] = Worker{Phase: Holding, Claim: uint8(slot + 1), Past: s.Claims[slot].Past}
}

func (n *next) settles(w int) {
	claim := n.From.Workers[w].Claim
	if claim != 0 && n.From.Claims[claim-1].Locked {
		return // until the reaper has committed
	}
	n.Add(workers[w], settles, func(s *State) {
		n.turn(s, w)
		s.Workers[w] = Worker{DeclaredDead: s.Workers[w].DeclaredDead}
	})
	if !n.RepliesArrive {
		n.Chance(workers[w], settlesUnheard, func(s *State) { n.turn(s, w) })
	}
}

// turn settles the worker's row and finishes the claim, unless the attempt of another row in it has not ended.
func (m Model) turn(s *State, w int) {
	held := s.Workers[w]
	end := ended{held.Past, held.Began, held.Outcome.Is()}
	isLast := held.Claim != 0 && !s.Claims[held.Claim-1].Rest
	if isLast && !m.keeps(SettleBeforeFinish) {
		s.finish(int(held.Claim) - 1)
		m.settle(s, 0, end)
		return
	}
	m.settle(s, held.Claim, end)
	if isLast {
		s.finish(int(held.Claim) - 1)
	}
}

// reclaims releases a claim whose commit had no reply.
func (n *next) reclaims(w, slot int) {
	claim := n.From.Claims[slot]
	isForgotten := !claim.Known || !n.keeps(KeepsRemembered)
	if !isForgotten || claim.Settled || !n.keeps(ReclaimsForgotten) {
		return
	}
	n.Add(workers[w], "gives back a claim whose commit had no reply", func(s *State) {
		n.settle(s, uint8(slot+1), ended{past: claim.Past, outcome: dispatch.Released})
		s.finish(slot)
	})
}

func (n *next) settlesTheRest(w, slot int) {
	claim := n.From.Claims[slot]
	if !claim.Rest {
		return
	}
	n.Add(workers[w], "settles the other row", func(s *State) {
		s.Claims[slot].Rest = false
		if claim.Settled {
			s.finish(slot)
		}
	})
}

const theProvider = "the provider"

// Higher counts make no difference.
const (
	many  = 3
	aloft = 1 // abandoned requests that may still arrive, in addition to those of the workers
)

// send is the departure of a request.
func (m Model) send(w *World) {
	if m.Class == dispatch.NonIdempotent {
		w.Unproven = min(w.Unproven+1, many)
	}
}

// fly abandons a request: it may still arrive, and no worker waits for its reply.
func (w *World) fly() { w.Flying = min(w.Flying+1, aloft) }

// apply is the arrival of a request.
func (m Model) apply(w *World) {
	switch {
	case m.Class == dispatch.NonIdempotent:
		w.Effects = min(w.Effects+1, many)
	case m.Class != dispatch.KeyIdempotent:
		w.Effects = 1 // a repetition has no further effect
	case w.Memory == Nothing:
		w.Effects, w.Memory = min(w.Effects+1, many), Remembers
	}
}

func (n *next) provider() {
	if n.From.World.Flying == 0 {
		return
	}
	n.Add(theProvider, "applies an abandoned request", func(s *State) {
		s.World.Flying--
		n.apply(&s.World)
	})
	n.Add(theProvider, "never gets an abandoned request", func(s *State) { s.World.Flying-- })
}

const aReaper = "a reaper"

// reaper is any living worker. Its transaction locks a claim first. Then it reads and settles the rows of the
// claim.
func (n *next) reaper() {
	for slot, claim := range n.From.Claims {
		reap := func(s *State) { n.reap(s, slot) }
		switch {
		case claim.Locked:
			n.Add(aReaper, "settles as lost what it locked", reap)
			n.Chance(aReaper, "dies, and its lock with it", func(s *State) { s.Claims[slot].Locked = false })
		case claim.Seen:
			n.Add(aReaper, "settles as lost what it saw", reap)
		case !n.From.isOrphan(claim) || !n.keeps(ReapsOrphans):
		case n.keeps(LockBeforeRead):
			n.Add(aReaper, "locks the claim of a dead worker", func(s *State) { s.Claims[slot].Locked = true })
		case !claim.Settled:
			n.Add(aReaper, "sees the claim of a dead worker", func(s *State) { s.Claims[slot].Seen = true })
		}
	}
}

func (s *State) isOrphan(claim Claim) bool {
	return claim.Owner == Dead || (claim.Owner != NoOwner && s.Workers[claim.Owner-1].DeclaredDead)
}

func (m Model) reap(s *State, slot int) {
	claim, outcome := s.Claims[slot], dispatch.Lost
	if !m.keeps(LostLeavesDoubt) {
		outcome = dispatch.Released
	}
	if !claim.Settled || claim.Seen {
		m.settle(s, uint8(slot+1), ended{claim.Past, claim.Began, outcome})
	}
	s.finish(slot)
}

const theOperator = "the operator"

// Plan is an action that an operator has decided on.
type Plan uint8

// An operator's plans.
const (
	None Plan = iota
	Retry
	RetryMayDuplicate
	Cancel
	ResolveCompleted
	ResolveFailed
)

var (
	decides = [...]string{
		Retry: "decides to retry", RetryMayDuplicate: "decides to accept a duplicate", Cancel: "decides to cancel",
		ResolveCompleted: "finds the effect", ResolveFailed: "finds that there is no effect",
	}
	acts = [...]string{
		Retry: "retries", RetryMayDuplicate: "retries with --may-duplicate", Cancel: "cancels",
		ResolveCompleted: "resolves it as completed", ResolveFailed: "resolves it as failed",
	}
)

// operator reads the state, and then acts on it.
func (n *next) operator() {
	if plan := n.From.Operator.Plan; plan != None {
		n.Chance(theOperator, acts[plan], func(s *State) { n.carryOut(s) })
		return
	}
	for plan := Retry; plan <= ResolveFailed; plan++ {
		if n.Allows(&n.From, plan) && n.isWise(&n.From, plan) {
			n.Chance(theOperator, decides[plan], func(s *State) { s.Operator = Operator{Plan: plan, Queued: s.Queue.Is} })
		}
	}
}

// Allows reports whether drainer accepts a plan. The correction of an earlier resolution is left out.
func (m Model) Allows(s *State, plan Plan) bool {
	inDoubt := s.Settled && s.Newest == unknown
	hasFailed := s.Settled && (s.Newest == failed || s.Newest == cancelled)
	switch plan {
	case Retry:
		return hasFailed || inDoubt && !m.isDangerous(s)
	case RetryMayDuplicate:
		return hasFailed || inDoubt
	case Cancel:
		return s.Queue.Is && !s.Queue.Maybe && !s.Queue.Lookup
	case ResolveCompleted:
		return inDoubt || s.Queue.Is && (s.Queue.Maybe || s.Queue.Lookup) || s.Settled && s.Newest == failed
	}
	return inDoubt || s.Queue.Is && (s.Queue.Maybe || s.Queue.Lookup)
}

func (m Model) isDangerous(s *State) bool {
	doubt := Past{Maybe: true, Sent: max(Fresh, s.firstSent())}
	return !m.Policy().MayStillSend(doubt.history(Never))
}

// firstSent returns the time at which the key's life starts, for an operator's retry.
func (s *State) firstSent() Age {
	if s.Since != Never {
		return s.Since
	}
	return s.FirstSent
}

// isWise reports whether a competent operator would choose a plan: resolve only as the truth is, and accept a
// duplicate only if that is needed, and once.
func (m Model) isWise(s *State, plan Plan) bool {
	switch plan {
	case RetryMayDuplicate:
		return s.Newest == unknown && m.isDangerous(s) && s.World.Accepted == 0
	case ResolveCompleted:
		return s.World.Effects > 0
	case ResolveFailed:
		return s.World.Effects == 0 && !s.isSending()
	}
	return true
}

// carryOut makes the change, unless the intent has changed since the operator read it.
func (m Model) carryOut(s *State) {
	op := s.Operator
	s.Operator = Operator{}
	if m.keeps(OperatorFences) && (op.Overtaken || op.Queued && !s.Queue.Is) {
		return
	}
	if op.Queued && m.keeps(OperatorTakesRow) {
		s.Queue = Queued{}
	}
	switch op.Plan {
	case Retry:
		s.requeue(s.firstSent())
	case RetryMayDuplicate:
		s.acceptDuplicate()
	case Cancel:
		s.settleAs(cancelled)
	case ResolveCompleted:
		s.settleAs(completed)
	case ResolveFailed:
		s.World.Unproven = 0
		s.settleAs(failed)
	}
}

// acceptDuplicate starts the time for retries again. The provider's memory of the key continues to age.
func (s *State) acceptDuplicate() {
	s.World.Accepted++
	s.Since = Never
	if s.World.Memory == Remembers {
		s.World.Memory = Ages
	}
	s.requeue(Never)
}

func (s *State) requeue(sent Age) {
	s.Queue = Queued{Is: true, Past: Past{Sent: sent, Maybe: s.Newest == unknown}}
	s.append(pending)
	s.Settled, s.Incident = false, false
}

func (s *State) settleAs(status Status) {
	s.append(status)
	s.Settled, s.Incident = true, false
}

// forget drops details that make no difference any more, so that states become equal. If a guard is missing, a
// detail may make a difference and is kept.
func (m Model) forget(s *State) {
	if s.Operator.Overtaken && m.keeps(OperatorFences) {
		s.Operator = Operator{}
	}
	// When an attempt began matters until another one is known as the first.
	if s.FirstSent != Never && (s.World.Accepted == 0 || s.Since != Never) {
		s.forgetBegins()
	}
	if m.keeps(LeaseBeforeSend) && (m.keeps(ClaimFences) || m.keeps(AttemptEndsOnce)) {
		for w := range s.Workers {
			s.Workers[w].forgetRefused()
		}
	}
}

func (s *State) forgetBegins() {
	for slot := range s.Claims {
		if s.Claims[slot].Sent != Never {
			s.Claims[slot].Began = Never
		}
	}
	for w := range s.Workers {
		if s.Workers[w].Sent != Never {
			s.Workers[w].Began = Never
		}
	}
}

// forgetRefused drops the memory of a worker that lost its row, except its knowledge of an effect.
func (w *Worker) forgetRefused() {
	if w.Phase == Idle || w.Claim != 0 {
		return
	}
	left := Worker{DeclaredDead: w.DeclaredDead}
	if w.Phase == Waiting || w.knowsEffect() {
		left.Phase, left.Outcome = w.Phase, w.Outcome
	}
	*w = left
}

func (w *Worker) knowsEffect() bool { return w.Phase == Done && w.Outcome.Is() == dispatch.Completed }
