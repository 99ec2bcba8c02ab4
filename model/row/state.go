package row

// State is all there is of one intent: its rows in the outbox, what workers
// and an operator remember of it, and what its provider did.
type State struct {
	Queue     Queued
	Claims    [2]Claim // a slot is a claim id: workers forget it with the claim
	Newest    Status   // that of the newest attempt
	Settled   bool     // the newest attempt is the last
	Incident  bool     // open, because the outcome is unknown
	FirstSent Age      // of the first attempt that may have been sent
	Since     Age      // of the first since a duplicate was accepted

	Workers  [2]Worker
	Operator Operator
	World    World
}

// Queued is the row in the queue, if it is there.
type Queued struct {
	Is    bool
	Waits bool // it is due once every earlier send is over
	Past
}

// Past is what goes with a row from one attempt to the next.
type Past struct {
	Tries  int8
	Sent   Age  // since something may first have been sent
	Maybe  bool // it may have been applied
	Lookup bool // the next attempt asks
}

// Age is how long ago something happened, measured by a key's life.
type Age uint8

// Half of a key's life is when retries end.
const (
	Never Age = iota
	Fresh
	Old // half of the key's life ago
)

// Claim is a worker's claim of a batch with the intent in it.
type Claim struct {
	Owner   Owner
	Known   bool // the owner got the reply
	Settled bool // the intent's attempt under it has ended
	Rest    bool // that of another row has not
	Locked  bool // by a reaper
	Seen    bool // by a reaper that does not lock
	Began   Age
	Past
}

// Owner is a worker by its number, from 1, or nobody.
type Owner uint8

// Who else there is.
const (
	Nobody Owner = 0 // there is no such claim
	Dead   Owner = 3 // a worker that is no more
)

// Worker is a process and what it remembers of the intent.
type Worker struct {
	Phase   Phase
	Claim   uint8 // the slot, from 1, under which it holds the row; 0 once that claim is gone
	Began   Age   // the send
	Outcome Outcome
	Buried  bool // others declared it dead; it may not know
	Past
}

// Phase is how far a worker is with its row.
type Phase uint8

// A worker's phases.
const (
	Idle Phase = iota
	Holding
	Waiting // for the provider's reply
	Done    // and not settled, as far as it knows
)

// Operator is a change that was decided by how the intent stood, and is not
// made yet.
type Operator struct {
	Plan      Plan
	Queued    bool // the intent stood in the queue
	Overtaken bool // its history has grown since
}

// World is what really happened.
type World struct {
	Effects  int8
	Flying   int8 // requests on their way that nobody waits for
	Memory   Memory
	Unproven int8 // requests that repeat an effect, and that nobody knows to have had none
	Accepted int8 // duplicates that an operator accepted
}

// Memory is what the provider knows of the key.
type Memory uint8

// A provider's memory of a key.
const (
	Nothing Memory = iota
	Remembers
	Ages // half of the key's life is over
)
