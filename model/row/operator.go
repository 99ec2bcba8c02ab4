package row

const theOperator = "the operator"

// Plan is what an operator is about to do.
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

// operator is a person who looks, and then acts on what was seen.
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

// Allows is what drainer itself has for or against a plan. What an operator
// resolved once, and then finds to be otherwise, is left out.
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

// firstSent is where the clock of the key starts, for an operator.
func (s *State) firstSent() Age {
	if s.Since != Never {
		return s.Since
	}
	return s.FirstSent
}

// isWise is what an operator is trusted with: whoever resolves found out, and
// nobody accepts a duplicate that is not needed, nor a second one.
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

// carryOut makes the change, unless somebody was quicker.
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

// acceptDuplicate starts the clock of the retries anew where the old one has
// run out. The provider's own goes on.
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
