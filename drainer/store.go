package drainer

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Store is the outbox as the engine needs it. All times are decided by the
// store's own clock.
type Store interface {
	batchStore
	claimStore
	workerStore
	fleetStore
	dueStore
	// Listen calls wake for every notification until the connection or ctx ends.
	Listen(ctx context.Context, wake func(provider string)) error
}

type dueStore interface {
	// Due counts the due rows of each shut provider, up to [DueLimit]; and, while no one has accepted the
	// database's history, of each provider that may repeat an effect.
	Due(ctx context.Context, shut, actsOnce []string) (map[string]int, error)
}

type fleetStore interface {
	// Publish tells producers the namespace of each provider, by name; it is empty
	// for those without one of their own.
	Publish(ctx context.Context, namespaces map[string]string) error
	// ProbeNow ends the cool-down of these providers, and of their operations, where this side was
	// refused: another configuration may be accepted.
	ProbeNow(ctx context.Context, providers []string) error
	// NoteRendered tells all workers that this one made requests of these operations, with its configuration.
	NoteRendered(ctx context.Context, worker string, operations []string) error
	// IsRendered reports whether any worker made a request of the operation, with the configuration of its
	// provider that this one has.
	IsRendered(ctx context.Context, worker, operation string) (bool, error)
	// Gates reads what the workers share of every provider, and of the operations that are shut.
	Gates(ctx context.Context, worker string) ([]Gate, error)
	// Closed reads the runs that take no further step, of those whose rows the
	// worker may have claimed before they were closed.
	Closed(ctx context.Context, worker string) (runs []string, err error)
}

type batchStore interface {
	// Commit does all of it in one transaction, in this order: settle, finish, change
	// breakers, mark idle providers, claim. Settling a row whose claim is gone writes nothing;
	// so does settling twice.
	Commit(ctx context.Context, worker string, batch Batch) (BatchReply, error)
}

// Judge decides what becomes of a row whose evidence is gone. It reports false
// for a row that this worker is not configured to judge.
type Judge func(*Row) (Settlement, bool)

type claimStore interface {
	// Reap settles rows of claims whose worker is dead and returns them. It
	// never waits for another reaper.
	Reap(ctx context.Context, providers []string, judge Judge) ([]Settlement, error)

	// Expire settles rows that were parked for so long, of operations that no worker knows.
	Expire(ctx context.Context, worker string, providers []string, after time.Duration, judge Judge) ([]Settlement, error)

	// ExpireRefused settles rows that were enqueued so long ago and wait for a gate that has been shut for
	// as long because this side was refused.
	ExpireRefused(ctx context.Context, worker string, providers []string, after time.Duration, judge Judge) ([]Settlement, error)

	// Unpark gives parked rows of these tools back to their providers' lanes, unless their breaker is
	// open. Rows of detours, which have a fallback, go back while their provider is shut as well.
	Unpark(ctx context.Context, tools, detours []string) error

	// TryOperation makes a row that the worker holds the probe of this shut operation, for so long. It reports
	// false where another row tries it, or its cool-down is not over.
	TryOperation(ctx context.Context, worker, gate string, probeFor time.Duration) (bool, error)

	// Reclaim settles rows of the worker's own claims on a provider that it
	// does not remember: those of a batch whose reply was lost.
	Reclaim(ctx context.Context, worker, provider, server string, remembered []int64, judge Judge) ([]Settlement, error)
}

type workerStore interface {
	// Join announces the worker and its providers; nothing can be claimed before. The digests are those
	// of the providers' configuration, in the same order, and then that of all of it. It publishes keyed fingerprints of them: their readers
	// cannot try guesses of what was hashed.
	Join(ctx context.Context, worker string, providers, tools []string, digests ...[]byte) error
	// Beat reports false if the worker was declared dead: it must stop for good. So it must after [ErrLostCommits].
	Beat(ctx context.Context, worker string) (alive bool, err error)
	// Retire takes the worker out of the fleet that shares the limits. Until it
	// leaves, it still sends heartbeats and settles.
	Retire(ctx context.Context, worker string) error
	Leave(ctx context.Context, worker string) error
	// Beats reads the last heartbeat of each worker.
	Beats(ctx context.Context, lease time.Duration) ([]Heartbeat, error)
	// DeclareDead decides the death of those workers whose last heartbeat is still that one.
	DeclareDead(ctx context.Context, silent []Heartbeat) error
}

// Heartbeat is a worker's last one.
type Heartbeat struct {
	Worker  string
	At      time.Time // by the store's clock: it is only compared with itself
	Overdue bool      // by the store's clock, which may have leapt, it is older than a lease; and the worker holds rows
}

// Batch is one round trip: what several lanes settle and claim in one commit.
type Batch struct {
	Settle []Settlement
	Finish []int64 // claims whose last row is settled by now
	Claims []Claim
}

// Claim asks for due rows of one provider that one server is to serve. It gets
// none while either is paused, or while the server's breaker is open.
type Claim struct {
	Provider string
	Limit    int    // 0 claims nothing
	Bytes    int    // the row that reaches it is the last one; 0 for no limit
	Parts    []Part // whose rows, in the order in which they fill the limit; none for everyone's, from the start
	Rescans  bool   // it looks through rows once more, which may take long: its time is measured
	Idle     IdleMark
	Server   string        // who is to serve them: the provider, or its fallback
	Fallback string        // whose rows the provider's own lane leaves alone; empty for none
	ProbeFor time.Duration // over 0: claim one row for that long, to try the server after its cool-down

	LooksLast bool // its lane drains once: it must know whether a limit kept rows from it
	ActsOnce  bool // some of the rows may repeat an effect, so none are taken while commits may have been lost

	Operation string // of a probe: the operation that it tries, with a row that is parked; empty for the server
}

// IsFull reports that no cursor hides a row from it.
func (c *Claim) IsFull() bool {
	return !slices.ContainsFunc(c.Parts, func(p Part) bool { return !p.After.IsZero() || p.Ahead > 0 })
}

// Part of a claim takes rows of one tenant, or of the first among several that have due rows.
type Part struct {
	First, Last int16 // tenants
	Limit       int
	After       Cursor
	Before      Cursor // the last row that it may take; zero for none
	Front       int    // of the tenant's fronts the one that it follows
	Until       int    // the front that begins at Before

	Ahead int      // over 0: it looks in that many rows behind the cursor, for those of other runs than Crowd, and takes the last one whatever it is
	Crowd []string // runs
}

// LastTenant is no smaller than any tenant. Tenant 0 is that of rows that have none.
const LastTenant = math.MaxInt16

func (p Part) isOfOne() bool { return p.First == p.Last }

// Has reports whether it is for rows of this tenant.
func (p Part) Has(tenant int16) bool { return p.First <= tenant && tenant <= p.Last }

// Cursor is where the last claim ended. Scanning from there skips the dead
// index entries of rows claimed earlier; the zero cursor scans from the start.
type Cursor struct {
	NextAttemptAt time.Time
	IntentID      int64
}

// IsZero reports that it is before all rows.
func (c Cursor) IsZero() bool { return c == Cursor{} }

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

// BatchReply is index-aligned with its Batch.
type BatchReply struct {
	Refused []int // indices into Batch.Settle: the claim was gone, or the row settled before
	Claimed []ClaimReply
	Sagas   SagaNews
}

// SagaNews counts what a batch did to sagas.
type SagaNews struct {
	Marked      bool // one began, or waits for a pass
	Undos       int  // that the batch enqueued by itself
	Compensated int  // sagas that it ended
}

// ClaimReply holds the rows of one Claim.
type ClaimReply struct {
	Rows  []*Row
	Found int // rows that it took, with those that it stopped: their run is rolled back
	Bytes int // of these rows, counted as for the claim's limit
	Of    []Taken
	Held  bool          // due rows are left of a tenant that has a limit in flight; only for a full claim that looks last
	Took  time.Duration // of a batch's first claim, with all that the batch settled
}

// Taken counts the rows that a part of a claim found of one tenant.
type Taken struct {
	Part    int // its place among the claim's parts
	Tenant  int16
	Weight  int  // of the tenant's share
	Limited bool // the tenant has a limit in flight
	Found   int
	Next    Cursor // its last row
}

// DueLimit is where counting due rows stops.
const DueLimit = 100_000

// Row is a claimed intent: what to do, and what its past says.
type Row struct {
	ClaimID  int64
	IntentID int64
	Attempt  int // the number of this attempt; only ever grows
	Tries    int // what MaxAttempts counts, including this attempt

	FirstAttemptAt *time.Time    // the database's clock; passed back untouched
	SinceFirstSend time.Duration // at the moment of the claim
	SinceEnqueue   time.Duration // at the moment of the claim; since not_before, if that was later
	SinceDue       time.Duration // at the moment of the claim
	MaybeApplied   bool
	OlderDoubt     bool   // it may have been applied under an older key than it has now
	Lookup         bool   // ask whether it was applied, do not act
	Probe          string // the half-open breaker that it alone may pass; empty for none
	Closed         bool   // its run is being compensated: it must not be sent any more
	InSaga         bool   // its run is being compensated, or was
	Via            string // the fallback that is to serve it; empty for its own provider, see isAtEither
	Undoes         *int64 // the intent whose effect this one undoes; nil for a forward step

	Tenant  int16
	Weight  int // of the tenant's share
	Part    int // of its claim's parts the one that took it
	Tuple   dispatch.Tuple
	Key     dispatch.Qualifiers // of its newest key, as the store has them: no configuration changes the key of a row
	Payload json.RawMessage
	Headers map[string]string

	ProviderRef string // for a lookup: what an earlier attempt brought

	ClaimedAt time.Time // by this process's clock, to continue the durations above

	key   string        // once computed
	spans *attemptSpans // of this attempt, from its dispatch on; nil where nothing is traced
}

// server is the provider that is to serve the row: its own, or its fallback.
func (r *Row) server() string {
	if r.Via != "" {
		return r.Via
	}
	return r.Tuple.Provider()
}

// isAtEither reports that commits were lost, and with them who served the row: its own
// provider or the fallback. Then it bears the name of its own provider.
func (r *Row) isAtEither() bool { return r.MaybeApplied && r.Via == r.Tuple.Provider() }

// forgetIntent lets go of what was to be sent: outcomes may have to wait for a
// database that is away.
func (r *Row) forgetIntent() { r.Payload, r.Headers = nil, nil }

// idempotencyKey is computed once an attempt: it costs a digest.
func (r *Row) idempotencyKey() string {
	if r.key == "" {
		r.key = r.Tuple.QualifiedKey(r.Key)
	}
	return r.key
}

// History is the row's past at that time. It continues the durations
// that the database measured by this process's own clock, and never compares the
// two machines' clocks. startedAt counts as the first send if none came before.
func (r *Row) History(startedAt, at time.Time) dispatch.History {
	// Doubt without a first send is left by a retry with --may-duplicate.
	accepted := r.MaybeApplied && r.FirstAttemptAt == nil
	history := dispatch.History{Tries: r.Tries, MaybeApplied: r.MaybeApplied, Accepted: accepted, Lookup: r.Lookup}
	history.OlderDoubt = r.MaybeApplied && r.OlderDoubt
	if !startedAt.IsZero() {
		history.SinceStart = between(startedAt, at)
	}
	switch {
	case r.FirstAttemptAt != nil:
		history.SinceFirstSend = r.SinceFirstSend + between(r.ClaimedAt, at)
	case !startedAt.IsZero():
		history.SinceFirstSend = history.SinceStart
	}
	return history
}

// Settlement is the end of one attempt: what was seen and what follows.
type Settlement struct {
	Row        *Row
	StartedAt  time.Time // zero if the attempt never started
	FinishedAt time.Time
	Result     dispatch.Result
	Decision   dispatch.Decision
	Breakers   []BreakerChange // what it means for breakers
	BeginsSaga bool            // its run is rolled back from here
	Park       string          // the lane where it waits until its operation is known, or its breaker closed; nothing is recorded then
	ParkFor    time.Duration   // from when on a lane may claim it there; a lane of an operation is never claimed from
	Refused    bool            // it failed alone, with nothing sent: a human must know
	Foreign    bool            // its effect may be that of another outbox's intent: a human must know
	Acts       bool            // its tool has an effect
	Repeats    bool            // a batch that failed may have settled it
}

// ConcernsSaga reports that its commit begins a saga, or that one may have waited for it.
func (s *Settlement) ConcernsSaga() bool { return s.BeginsSaga || s.Row.InSaga || s.Row.Undoes != nil }

// asksForTooLong reports that the provider wants to be left alone for longer than
// retry.max_wait: what it asks for is otherwise the least delay.
func (s *Settlement) asksForTooLong() bool {
	honours := s.Decision.Status == dispatch.StatusPending || s.Row.Lookup // a first lookup waits for the last send instead
	return honours && s.Decision.Back() && s.Result.RetryAfter > s.Decision.Delay
}

// firstReplay reports that the provider answered from its memory of a key that this
// outbox had not sent before, as far as it remembers. An operator who accepted a
// duplicate, and the undo that a retried saga makes, send a key again.
func (s *Settlement) firstReplay() bool {
	return s.Result.Outcome == dispatch.Completed && s.Result.Replayed && !s.Row.Lookup &&
		s.Row.FirstAttemptAt == nil && !s.Row.MaybeApplied && s.Row.Undoes == nil
}

// MayHaveSent reports whether the first-send time starts to count. A provider that does not know
// who asks has not looked at the key, so the wait for other credentials takes nothing off its life.
func (s *Settlement) MayHaveSent() bool {
	return !s.Row.Lookup && !s.Result.Unsent && s.Result.Outcome != dispatch.NotSent && s.Result.Outcome != dispatch.CredentialsRefused && s.Result.Outcome != dispatch.Released
}
