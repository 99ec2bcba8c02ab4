package drainer

import (
	"cmp"
	"context"
	"time"
)

// Store is the outbox as the engine needs it. All times are decided by the
// store's own clock.
type Store interface {
	turnStore
	claimStore
	workerStore
	fleetStore
	dueStore
	// Listen calls wake for every notification until the connection or ctx ends.
	Listen(ctx context.Context, wake func(provider string)) error
}

type dueStore interface {
	// Due counts each provider's due rows, up to [DueLimit].
	Due(ctx context.Context, providers []string) (map[string]int, error)
}

type fleetStore interface {
	// Gates reads what the workers share of every provider.
	Gates(ctx context.Context, worker string) ([]Gate, error)
	// Closed reads the runs that take no further step, of those whose rows the
	// worker may have claimed before they were closed.
	Closed(ctx context.Context, worker string) (runs []string, err error)
}

type turnStore interface {
	// Turn does all of it in one commit, in this order: settle, finish, change
	// breakers, mark idle providers, claim. Settling a row whose claim is gone writes nothing;
	// so does settling twice.
	Turn(ctx context.Context, worker string, turn Turn) (TurnReply, error)
}

// Judge decides what becomes of a row whose evidence is gone. It reports false
// for a row that this worker is not configured to judge.
type Judge func(*Row) (Settlement, bool)

type claimStore interface {
	// Reap settles rows of claims whose worker is dead and returns them. It
	// never waits for another reaper.
	Reap(ctx context.Context, providers []string, judge Judge) ([]Settlement, error)

	// Reclaim settles rows of the worker's own claims on a provider that it
	// does not remember: those of a turn whose reply was lost.
	Reclaim(ctx context.Context, worker, provider, server string, remembered []int64, judge Judge) ([]Settlement, error)
}

type workerStore interface {
	// Join announces the worker and its providers; nothing can be claimed before.
	Join(ctx context.Context, worker string, providers []string) error
	// Beat reports false if the worker is buried: it must stop for good.
	Beat(ctx context.Context, worker string) (alive bool, err error)
	// Retire takes the worker out of the fleet that shares the limits. It still
	// beats, settles and leaves like any other.
	Retire(ctx context.Context, worker string) error
	Leave(ctx context.Context, worker string) error
	// Bury decides the death of every worker without a beat for that long.
	Bury(ctx context.Context, after time.Duration) error
}

// Turn is one round trip: what several lanes settle and claim in one commit.
type Turn struct {
	Settle []Settlement
	Finish []int64 // claims whose last row is settled by now
	Claims []Claim
}

// Claim asks for due rows of one provider that one server is to serve. It gets
// none while either is paused, or while the server's breaker is open.
type Claim struct {
	Provider string
	Limit    int // 0 claims nothing
	After    Cursor
	Idle     IdleMark
	Server   string        // who is to serve them: the provider, or its fallback
	Fallback string        // whose rows the provider's own lane leaves alone; empty for nobody's
	ProbeFor time.Duration // over 0: claim one row for that long, to try the server after its cool-down
}

// Cursor is where the last claim ended. Scanning from there skips the dead
// index entries of rows claimed earlier; the zero cursor scans from the start.
type Cursor struct {
	NextAttemptAt time.Time
	IntentID      int64
}

func (c Cursor) isZero() bool { return c == Cursor{} }

// Compare orders cursors as rows are claimed.
func (c Cursor) Compare(other Cursor) int {
	return cmp.Or(c.NextAttemptAt.Compare(other.NextAttemptAt), cmp.Compare(c.IntentID, other.IntentID))
}

// IdleMark tells producers whether to notify this provider's lanes.
type IdleMark int

const (
	IdleUnchanged IdleMark = iota
	IdleWaiting            // notify for the next [IdleFor]
	IdleBusy               // do not notify: the lane looks by itself
)

// IdleFor is how long producers notify after a lane marked itself waiting.
const IdleFor = 5 * time.Second

// TurnReply is index-aligned with its Turn.
type TurnReply struct {
	Refused []int // indices into Turn.Settle: the claim was gone, or the row settled before
	Claimed []ClaimReply
}

// ClaimReply holds the rows of one Claim, all under one new claim id.
type ClaimReply struct {
	Rows  []*Row
	Found int // rows that it took, with those that it stopped: their run goes back
	Next  Cursor
	Took  time.Duration // of a turn's first claim, with all that the turn settled
}

// DueLimit is where counting due rows stops.
const DueLimit = 100_000
