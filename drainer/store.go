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

// Store is the outbox as the engine needs it. It decides all times by its own clock.
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
	// ProbeNow ends the cool-down of these providers and of their operations if they are shut because this
	// side was refused: the new configuration may be accepted.
	ProbeNow(ctx context.Context, providers []string) error
	// NoteRendered tells all workers that this one has rendered requests of these operations with its configuration.
	NoteRendered(ctx context.Context, worker string, operations []string) error
	// IsRendered reports whether any worker has rendered a request of the operation with the same configuration of
	// the provider as this one.
	IsRendered(ctx context.Context, worker, operation string) (bool, error)
	// Gates reads the shared state of every provider, and of the operations that are shut.
	Gates(ctx context.Context, worker string) ([]Gate, error)
	// Closed reads the runs that take no further step, as far as the worker may have claimed rows of
	// them before they were closed.
	Closed(ctx context.Context, worker string) (runs []string, err error)
}

type batchStore interface {
	// Commit executes the batch in one transaction, in this order: settle, finish, change breakers, mark
	// idle providers, claim. It writes nothing for a row whose claim is gone or that is settled already.
	Commit(ctx context.Context, worker string, batch Batch) (BatchReply, error)
}

// Judge decides about a row whose outcome is not known. It reports false for a row that this worker is not
// configured to judge.
type Judge func(*Row) (Settlement, bool)

type claimStore interface {
	// Reap settles rows of claims whose worker is dead and returns them. It
	// never waits for another reaper.
	Reap(ctx context.Context, providers []string, judge Judge) ([]Settlement, error)

	// Expire settles rows whose operation no worker knows and that were parked for longer than after.
	Expire(ctx context.Context, worker string, providers []string, after time.Duration, judge Judge) ([]Settlement, error)

	// ExpireRefused settles rows that were enqueued longer ago than after, and whose gate has been shut for as long
	// because this side was refused.
	ExpireRefused(ctx context.Context, worker string, providers []string, after time.Duration, judge Judge) ([]Settlement, error)

	// Unpark gives parked rows of these tools back to their providers' lanes, unless their breaker is
	// open. Rows of detours, which have a fallback, go back while their provider is shut as well.
	Unpark(ctx context.Context, tools, detours []string) error

	// TryOperation makes a row that the worker holds the probe of this shut operation, for probeFor. It reports false if
	// there is another probe, or the cool-down is not over.
	TryOperation(ctx context.Context, worker, gate string, probeFor time.Duration) (bool, error)

	// Reclaim settles rows of the worker's own claims on a provider that are not among the remembered
	// ones: those of a batch whose reply was lost.
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

// Claim asks for due rows of one provider that one server is to serve. It gets none while either of the two is
// paused, or while the server's breaker is open.
type Claim struct {
	Provider string
	Limit    int    // 0 claims nothing
	Bytes    int    // the row that reaches this sum is the last one; 0 for no limit
	Parts    []Part // in the order in which they fill the limit; none for the rows of all tenants, from the start
	Rescans  bool   // a part is a full scan, which may take long, so its time is measured
	Idle     IdleMark
	Server   string        // who is to serve the rows: the provider, or its fallback
	Fallback string        // rows that this fallback has begun are left to its lane; empty for none
	ProbeFor time.Duration // if above 0, claim one row as the probe of the server, which has so much time

	IsSearch bool // only a search for tenants that are not hungry, beside the lane's other claims

	LooksLast bool // the lane drains once, and must know whether a limit holds rows back
	ActsOnce  bool // some rows may repeat an effect, so none are claimed while commits may have been lost

	Operation string // if not empty, the probe is a parked row of this operation, and does not try the server
}

// IsFull reports that no cursor hides a row from the claim.
func (c *Claim) IsFull() bool {
	return !slices.ContainsFunc(c.Parts, func(p Part) bool { return !p.After.IsZero() || p.Ahead > 0 })
}

// Part is the part of a claim that takes rows of one tenant, or of the first tenant with due rows in a range.
type Part struct {
	First, Last int16 // tenants
	Limit       int
	After       Cursor
	Before      Cursor // the last row that it may take; zero for no bound
	Front       int    // the id of the tenant's front that it follows
	Until       int    // the id of the front that begins at Before

	Ahead int      // if above 0, it takes rows from the next so many behind the cursor: all whose run is not in Crowd, and the last one
	Crowd []string // run ids
}

// LastTenant is no smaller than any tenant. Tenant 0 is that of rows that have none.
const LastTenant = math.MaxInt16

func (p Part) isOfOne() bool { return p.First == p.Last }

// Has reports whether it is for rows of this tenant.
func (p Part) Has(tenant int16) bool { return p.First <= tenant && tenant <= p.Last }

// Cursor is the place of the last claimed row. A scan from there skips the dead index entries of rows that were
// claimed earlier. The zero cursor scans from the start.
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
	IdleBusy               // do not notify: the lane polls
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
	Marked      bool // a saga began, or waits for a pass
	Undos       int  // undos that the batch enqueued
	Compensated int  // sagas that the batch ended
}

// ClaimReply holds the rows of one Claim.
type ClaimReply struct {
	Rows  []*Row
	Found int // rows that the claim took, including those that it cancelled because their run is rolled back
	Bytes int // of these rows, counted as for the claim's limit
	Of    []Taken
	Held  bool          // due rows are left because of a tenant's limit in flight; known only for a full claim with LooksLast
	Took  time.Duration // measured for a batch's first claim, including the settlements of the batch
}

// Taken counts the rows that a part of a claim found of one tenant.
type Taken struct {
	Part    int // its place among the claim's parts
	Tenant  int16
	Weight  int  // the tenant's
	Limited bool // the tenant has a limit in flight
	Found   int
	Next    Cursor // the place of its last row
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
	Lookup         bool   // only ask whether it was applied
	Probe          string // the half-open breaker that only this row may pass; empty for none
	Closed         bool   // its run is being compensated: it must not be sent any more
	InSaga         bool   // its run is being compensated, or was
	Via            string // the fallback that is to serve it; empty for its own provider, see isAtEither
	Undoes         *int64 // the intent whose effect this one undoes; nil for a forward step

	Tenant  int16
	Weight  int // the tenant's
	Part    int // the index of the claim's part that took it
	Tuple   dispatch.Tuple
	Key     dispatch.Qualifiers // of its newest key, as stored, so that no change of configuration changes a row's key
	Payload json.RawMessage
	Headers map[string]string

	ProviderRef string // for a lookup: the reference that an earlier attempt returned

	ClaimedAt time.Time // by this process's clock, to continue the durations above

	key   string        // empty until it is computed
	spans *attemptSpans // of this attempt, from its dispatch on; nil without tracing
}

// server is the provider that is to serve the row: its own, or its fallback.
func (r *Row) server() string {
	if r.Via != "" {
		return r.Via
	}
	return r.Tuple.Provider()
}

// isAtEither reports that lost commits included the one that said who served the row: its own provider or the
// fallback. Via is then the name of its own provider.
func (r *Row) isAtEither() bool { return r.MaybeApplied && r.Via == r.Tuple.Provider() }

// forgetIntent frees the payload once the row was sent: outcomes may have to wait long for a database that is away.
func (r *Row) forgetIntent() { r.Payload, r.Headers = nil, nil }

// idempotencyKey is computed once for each attempt, since it costs a digest.
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
	BeginsSaga bool            // its run is rolled back because of it
	Park       string          // if not empty, the row is put into this queue lane and no attempt is recorded; rows of a lane named provider/operation are never claimed
	ParkFor    time.Duration   // after how long a lane may claim the parked row
	Refused    bool            // it failed without being sent and without a rollback: an incident tells a human
	Foreign    bool            // its effect may be that of another outbox's intent: an incident tells a human
	Acts       bool            // its tool has an effect
	Repeats    bool            // a batch that failed may have settled it
}

// ConcernsSaga reports that the settlement begins a saga, or that a saga may have waited for it.
func (s *Settlement) ConcernsSaga() bool { return s.BeginsSaga || s.Row.InSaga || s.Row.Undoes != nil }

// asksForTooLong reports that the provider's Retry-After is longer than retry.max_wait. A shorter one is the
// least delay of the retry.
func (s *Settlement) asksForTooLong() bool {
	honours := s.Decision.Status == dispatch.StatusPending || s.Row.Lookup // a first lookup waits for the last send instead
	return honours && s.Decision.Back() && s.Result.RetryAfter > s.Decision.Delay
}

// firstReplay reports that the provider replayed an answer for a key although this outbox does not know of an earlier
// send. Rows for which an operator accepted a duplicate, and undos, may send a key again on purpose.
func (s *Settlement) firstReplay() bool {
	return s.Result.Outcome == dispatch.Completed && s.Result.Replayed && !s.Row.Lookup &&
		s.Row.FirstAttemptAt == nil && !s.Row.MaybeApplied && s.Row.Undoes == nil
}

// MayHaveSent reports whether the key's lifetime starts to count. A provider that refuses the credentials has not
// looked at the key, so waiting for new credentials does not use that lifetime up.
func (s *Settlement) MayHaveSent() bool {
	return !s.Row.Lookup && !s.Result.Unsent && s.Result.Outcome != dispatch.NotSent && s.Result.Outcome != dispatch.CredentialsRefused && s.Result.Outcome != dispatch.Released
}
