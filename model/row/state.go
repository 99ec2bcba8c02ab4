package row

import (
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

// State is the whole state of one intent: its rows in the outbox, the memory of workers and of an operator, and
// the effects at its provider.
type State struct {
	Queue     Queued
	Claims    [2]Claim // a slot is the id of a claim, which workers forget with the claim
	Newest    Status   // of the newest attempt
	Settled   bool     // the newest attempt is the last
	Incident  bool     // open, because the outcome is unknown
	FirstSent Age      // when the first attempt began that may have been sent
	Since     Age      // the same, since a duplicate was accepted

	LostCommits bool // the database has lost commits, which happens once

	Workers  [2]Worker
	Operator Operator
	World    World
}

// Queued is the row in the queue; Is is false if there is none.
type Queued struct {
	Is    bool
	Waits bool // it is due only after all earlier sends are over
	Past
}

// Past holds the fields that a row keeps between attempts.
type Past struct {
	Tries  int8
	Sent   Age  // when a request may first have been sent
	Maybe  bool // it may have been applied
	Lookup bool // the next attempt is a lookup
}

// Age is how long ago something happened, relative to a key's life.
type Age uint8

// Retries end at half of a key's life.
const (
	Never Age = iota
	Fresh
	Old // half of the key's life ago
)

// Claim is a worker's claim of a batch that contains the intent.
type Claim struct {
	Owner   Owner
	Known   bool // the owner got the reply
	Settled bool // the intent's attempt under it has ended
	Rest    bool // the attempt of another row in the batch has not ended
	Locked  bool // by a reaper
	Seen    bool // a reaper has read it without a lock
	Began   Age
	Past
}

// Owner is the number of a worker, from 1, or one of the constants below.
type Owner uint8

// Owners that are not workers.
const (
	NoOwner Owner = 0 // there is no such claim
	Dead    Owner = 3 // a worker that has crashed or started again
)

// Worker is a process and its memory of the intent.
type Worker struct {
	Phase        Phase
	Claim        uint8 // the slot of its claim, from 1; 0 once that claim is deleted
	Began        Age   // when it sent the request
	Outcome      Outcome
	DeclaredDead bool // other workers declared it dead; it may not know yet
	Past
}

// Phase is how far a worker is with its row.
type Phase uint8

// A worker's phases.
const (
	Idle Phase = iota
	Holding
	Waiting // for the provider's reply
	Done    // the attempt has ended, and is not settled as far as the worker knows
)

// Operator is a change that an operator has decided on and not yet made.
type Operator struct {
	Plan      Plan
	Queued    bool // the intent was in the queue then
	Overtaken bool // its history has a new entry since then
}

// World is the state at the provider.
type World struct {
	Effects  int8
	Flying   int8 // abandoned requests that may still arrive
	Memory   Memory
	Unproven int8 // requests that may have had an effect and would repeat it
	Accepted int8 // duplicates that an operator accepted
}

// Memory says whether the provider remembers the key.
type Memory uint8

// A provider's memory of a key.
const (
	Nothing Memory = iota
	Remembers
	Ages // half of the key's life has passed
)

// Status and Outcome are those of package dispatch, as indexes: small states make the search fast.
type (
	Status  uint8
	Outcome uint8
)

// statusCancelled is set only by operators.
const statusCancelled dispatch.Status = "cancelled"

var (
	statuses = []dispatch.Status{
		"", // before the first attempt
		dispatch.StatusPending, dispatch.StatusCompleted, dispatch.StatusFailed, dispatch.StatusUnknown, statusCancelled,
	}
	outcomes = dispatch.Outcomes()
)

var (
	pending   = statusOf(dispatch.StatusPending)
	completed = statusOf(dispatch.StatusCompleted)
	failed    = statusOf(dispatch.StatusFailed)
	unknown   = statusOf(dispatch.StatusUnknown)
	cancelled = statusOf(statusCancelled)
)

func statusOf(status dispatch.Status) Status {
	place := slices.Index(statuses, status)
	if place < 0 {
		panic("the model does not know the status " + status)
	}
	return Status(place)
}

// Statuses lists the statuses that the model knows.
func Statuses() (known []string) {
	for _, status := range statuses[1:] {
		known = append(known, string(status))
	}
	return known
}

func outcomeOf(outcome dispatch.Outcome) Outcome { return Outcome(slices.Index(outcomes, outcome)) }

// Is returns the status of package dispatch.
func (s Status) Is() dispatch.Status { return statuses[s] }

// Is returns the outcome of package dispatch.
func (o Outcome) Is() dispatch.Outcome { return outcomes[o] }

func (s Status) String() string { return string(s.Is()) }

func (o Outcome) String() string { return string(o.Is()) }

const theClock = "the clock"

// clock adds the steps that the passing of time causes.
func (n *next) clock() {
	if n.From.Queue.Waits && !n.From.isSending() {
		n.Add(theClock, "ends the wait for earlier sends", func(s *State) { s.Queue.Waits = false })
	}
	if n.Class != dispatch.KeyIdempotent {
		return
	}
	if aged := n.From.aged(); aged != n.From {
		n.Add(theClock, "passes half of the key's life", func(s *State) { *s = aged })
	}
	if n.From.World.Memory == Ages && !n.From.isSending() {
		n.Add(theProvider, "forgets the key", func(s *State) { s.World.Memory = Nothing })
	}
}

const theDatabase = "the database"

// database adds a failover to a server that lost all commits since the enqueue.
func (n *next) database() {
	if !n.LosesCommits || n.From.LostCommits {
		return
	}
	n.Chance(theDatabase, "loses all commits since the enqueue", func(s *State) {
		for w := range s.Workers {
			if s.Workers[w].Phase == Waiting {
				s.World.fly()
			}
		}
		enqueued := max(Fresh, s.oldest())
		*s = State{LostCommits: true, World: s.World, FirstSent: enqueued, Queue: Queued{Is: true}}
		if n.keeps(LostCommitsLeaveDoubt) {
			s.Queue.Past = Past{Sent: enqueued, Maybe: true}
		}
	})
}

// oldest returns when a request may first have been sent, as far as any part of the state shows.
func (s *State) oldest() (oldest Age) {
	for _, age := range s.ages() {
		oldest = max(oldest, *age)
	}
	return oldest
}

func (s *State) ages() []*Age {
	return []*Age{
		&s.FirstSent, &s.Since, &s.Queue.Sent,
		&s.Claims[0].Sent, &s.Claims[0].Began, &s.Claims[1].Sent, &s.Claims[1].Began,
		&s.Workers[0].Sent, &s.Workers[0].Began, &s.Workers[1].Sent, &s.Workers[1].Began,
	}
}

// isSending reports whether a request may still arrive.
func (s *State) isSending() bool {
	return s.World.Flying > 0 || s.Workers[0].Phase == Waiting || s.Workers[1].Phase == Waiting
}

func (s State) aged() State {
	for _, age := range s.ages() {
		if *age == Fresh {
			*age = Old
		}
	}
	if s.World.Memory == Remembers {
		s.World.Memory = Ages
	}
	return s
}

func (n *next) attempts(w int) {
	worker := n.From.Workers[w]
	n.ends(w, "gives it back unsent", dispatch.Released)
	switch {
	case worker.DeclaredDead && n.keeps(LeaseBeforeSend):
	case worker.Lookup:
		n.asks(w)
	case n.keeps(AskedAtSend) && !n.Policy().MayStillSend(worker.history(Never)):
		n.ends(w, "must not send it any more", dispatch.NotSent)
	default:
		n.ends(w, "cannot send it", dispatch.NotSent)
		n.Add(workers[w], "sends it", func(s *State) {
			s.Workers[w].Phase, s.Workers[w].Began = Waiting, Fresh
			n.send(&s.World)
		})
	}
}

func (n *next) asks(w int) {
	if n.From.World.Effects > 0 {
		n.ends(w, "asks, and it was applied", dispatch.Completed)
	} else {
		n.Add(workers[w], "asks, and it was not applied", func(s *State) {
			s.Workers[w].end(dispatch.Absent)
			s.World.Unproven = 0
		})
	}
	n.ends(w, "asks, and gets no evidence", dispatch.Ambiguous)
	n.Add(workers[w], "asks for the last time, and gets no evidence", func(s *State) {
		s.Workers[w].Tries = LastTry
		s.Workers[w].end(dispatch.Ambiguous)
	})
}

// hears adds the possible ends of a request and its reply.
func (n *next) hears(w int) {
	n.Add(workers[w], "hears that it is applied", func(s *State) {
		n.apply(&s.World)
		s.Workers[w].end(dispatch.Completed)
	})
	n.Add(workers[w], "gets no reply although it is applied", func(s *State) {
		n.apply(&s.World)
		s.Workers[w].end(dispatch.Ambiguous)
	})
	n.isRefused(w, "hears a refusal", dispatch.Rejected)
	n.isRefused(w, "hears that there is no room", dispatch.Throttled)
	n.isRefused(w, "hears that its credentials are refused", dispatch.CredentialsRefused)
	n.isRefused(w, "hears that it is forbidden", dispatch.Forbidden)
	if n.Class == dispatch.KeyIdempotent && n.From.World.Flying > 0 {
		n.ends(w, "hears that an earlier request is under way", dispatch.InFlight)
	}
	n.ends(w, "hears nothing, for the request was lost", dispatch.Ambiguous)
	n.Add(workers[w], "stops waiting, and the request goes on", func(s *State) {
		s.World.fly()
		s.Workers[w].end(dispatch.Ambiguous)
	})
}

func (n *next) isRefused(w int, what string, outcome dispatch.Outcome) {
	n.Add(workers[w], what, func(s *State) {
		s.World.Unproven = max(s.World.Unproven-1, 0)
		s.Workers[w].end(outcome)
	})
}

// ends adds the end of an attempt, which is not settled yet.
func (n *next) ends(w int, what string, outcome dispatch.Outcome) {
	n.Add(workers[w], what, func(s *State) { s.Workers[w].end(outcome) })
}

func (w *Worker) end(outcome dispatch.Outcome) { w.Phase, w.Outcome = Done, outcomeOf(outcome) }
