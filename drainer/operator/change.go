// Package operator serves the people who operate an outbox, through the command line or a console: it
// lists intents with their status and the reason why they wait, and changes them. It shares the
// tables with the engine, but no code.
//
// An operator's change is made like an attempt: the package reads the intent's status, lets the [Action]
// judge it, and appends an entry under the next attempt number. The number protects against races. The
// first transaction that appends it, or takes the queue row, wins. The other one, of a worker or an
// operator, changes nothing.
package operator

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/postgres/sql"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// ErrNotFound says that the outbox has no such intent.
var ErrNotFound = errors.New("no such intent")

// Console is one connection to an outbox; it serves one call at a time.
type Console struct {
	conn *pgx.Conn
	look int // how many rows a listing looks at; MostLooked except in tests
}

// Open returns a Console that owns the connection: Close closes it.
func Open(conn *pgx.Conn) *Console { return &Console{conn: conn, look: MostLooked} }

// Look runs work in a read-only transaction on a connection that the caller still owns. The transaction uses no JIT
// compiler, since these statements run for a shorter time than their compilation takes. It uses no parallel workers of
// the server, since draining needs the CPU. Each execution has a plan of its own, since the best plan depends on the
// filter.
func Look(ctx context.Context, conn *pgx.Conn, statementTimeout time.Duration, work func(context.Context, *Console) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
		SET LOCAL search_path = pg_catalog, pg_temp;
		SET LOCAL jit = off;
		SET LOCAL plan_cache_mode = force_custom_plan;
		SET LOCAL max_parallel_workers_per_gather = 0;
		SET LOCAL statement_timeout = %d;
		SET LOCAL idle_in_transaction_session_timeout = '10s'`, statementTimeout.Milliseconds())})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing to commit
	return work(ctx, Open(conn))
}

// Close ends the connection.
func (c *Console) Close(ctx context.Context) error {
	if err := c.conn.Close(ctx); err != nil {
		return fmt.Errorf("close the database connection: %w", err)
	}
	return nil
}

// Signature names the operator of a change and the reason for it. Both are kept in the history of each
// intent that is changed.
type Signature struct {
	Operator string
	Reason   string
}

// ErrUnsigned says that a change has no usable name or reason.
var ErrUnsigned = errors.New("a change needs a name and a reason")

// Validate returns ErrUnsigned if the name or the reason is empty, or is not one line of text.
func (s Signature) Validate() error {
	return errors.Join(validateLine("the operator's name", s.Operator), validateLine("the reason", s.Reason))
}

func validateLine(what, text string) error {
	switch {
	case strings.TrimSpace(text) == "":
		return fmt.Errorf("%w: %s is empty", ErrUnsigned, what)
	case !isLine(text):
		return fmt.Errorf("%w: %s is not one line of plain text", ErrUnsigned, what)
	}
	return nil
}

// isLine reports whether text is one line. Besides control characters, it refuses Unicode's line and paragraph
// separators.
func isLine(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp)
	})
}

// name returns the operator's name as the history has it. The database adds the login.
func (s Signature) name() string { return "operator:" + s.Operator }

//go:embed sql/select.sql
var selectSQL string

// Selection chooses the intents of a bulk change. Statuses and Limit are required. An empty field does
// not narrow the choice.
type Selection struct {
	Statuses  []string
	Provider  string
	Run       string
	OlderThan time.Duration // since they were enqueued
	Waiting   bool          // only intents whose next attempt is in the future
	Limit     int
}

// MaxSelection is the highest limit of a selection.
const MaxSelection = 10_000

// Select finds intents, the oldest first, and reports whether there are more than the limit. It leaves out
// intents that are completed or in progress. It also leaves out the intents of a saga that ended as
// compensated or resolved, except unknown steps.
func (c *Console) Select(ctx context.Context, s Selection) (intents []int64, more bool, err error) {
	intents, err = collect(ctx, c.conn, "select intents", pgx.RowTo[int64], selectSQL, s.Statuses, s.Provider, s.Run, s.OlderThan.Seconds(), s.Limit+1, s.Waiting)
	if err != nil {
		return nil, false, err
	}
	return intents[:min(len(intents), s.Limit)], len(intents) > s.Limit, nil
}

// Find returns the id of the intent that has this four-tuple, or ErrNotFound.
func (c *Console) Find(ctx context.Context, t dispatch.Tuple) (int64, error) {
	return collectOne(ctx, c.conn, "find intent", ErrNotFound, pgx.RowTo[int64], `SELECT id FROM outbox.intent
		WHERE (agent_run_id, step_id, tool_name, business_scope) = ($1::text, $2::text, $3::text, $4::text)`,
		t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope)
}

// RunOf returns the agent run of an intent, which may be an undo, or ErrNotFound.
func (c *Console) RunOf(ctx context.Context, intentID int64) (string, error) {
	return collectOne(ctx, c.conn, "find the intent's run", ErrNotFound, pgx.RowTo[string], `SELECT agent_run_id FROM outbox.intent WHERE id = $1::bigint`, intentID)
}

// Action is a change that an operator asks for: [Retry], [BringForward], [Cancel]
// or [Resolve].
type Action interface {
	// judge returns the change of an intent, or why the intent must not change. It is a pure function.
	judge(standing) (change, refusal)
}

// AsShown is an action on intents as they were shown At a time, by the database's clock. It refuses an intent that a
// worker or another operator has changed since, even if the action would still be possible.
type AsShown struct {
	Action
	At time.Time
}

func (a AsShown) judge(s standing) (change, refusal) {
	if s.ChangedAt != nil && s.ChangedAt.After(a.At) {
		return change{}, refusedRace
	}
	return a.Action.judge(s)
}

// Now returns the database's time.
func (c *Console) Now(ctx context.Context) (now time.Time, err error) {
	if err = c.conn.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return now, fmt.Errorf("ask for the time: %w", err)
	}
	return now, nil
}

// standing holds the facts about one intent by which an action is decided.
type standing struct {
	IntentID      int64
	AgentRunID    string
	StepID        string
	ToolName      string
	BusinessScope string
	Status        string

	Attempt      int  // the newest attempt number that is used
	Queued       bool // it waits in the queue
	Settled      bool // if it is neither queued nor settled, it is in progress
	Lookup       bool // the queued row is a lookup
	Asked        bool // the newest request was a lookup
	Due          bool // the queued row is due
	MaybeApplied bool
	BeforeLoss   bool // it settled before commits were lost, and a retry of it may be among the lost ones
	LastOutcome  string
	ProviderRef  string
	Saga         string // state of its run's saga; empty: the run has none

	Via               string     // the fallback that may have applied it; empty for its own provider, see isAtEither
	NotBefore         *time.Time // the time that its agent asked for, if it is in the future
	FirstAttemptAt    *time.Time // since when the key's clock runs
	SecondsSinceFirst float64
	ChangedAt         *time.Time // the end of its newest attempt or operator's entry
}

func (s standing) isUndo() bool { return isUndo(s.StepID) }

// isAtEither reports whether lost commits included the one that said who served the intent: its own provider or the
// fallback. Via is then the name of its own provider.
func (s standing) isAtEither() bool { return s.Via == dispatch.Tuple{ToolName: s.ToolName}.Provider() }

// inDoubt returns the refusal of a retry. danger says why the retry could have a second effect.
func (s standing) inDoubt(danger string) refusal {
	if s.BeforeLoss {
		return refusal("commits were lost since it was " + s.Status + ", so a retry of it may have been applied, and " + danger +
			"; find out and resolve it, or accept a second effect with --may-duplicate")
	}
	return refusal("it may have been applied, and " + danger + "; find out and resolve it, or accept a second effect with --may-duplicate")
}

func (s standing) inProgress() bool { return !s.Queued && !s.Settled }

func (s standing) sinceFirst() time.Duration {
	return time.Duration(s.SecondsSinceFirst * float64(time.Second))
}

// change is the entry that an action appends to an intent's history.
type change struct {
	outcome     string
	status      string
	providerRef string
	forward     bool     // the queued row becomes due, and nothing else changes
	requeue     *requeue // if it is nil and forward is false, the intent is settled
}

// requeue holds the values with which a row is requeued.
type requeue struct {
	firstAttemptAt *time.Time
	maybeApplied   bool
	via            string
	lookup         bool // look up whether it was applied, before it is sent
	newKey         bool // send it under the next generation of its key
	beforeLoss     bool // requeue it as a row from before commits were lost, since these may have changed it
}

// refusal says why an action is not taken, and what can be done instead. Empty means that the action is not refused.
type refusal string

const refusedInProgress refusal = "it is in progress; wait until the attempt has ended, or pause its provider and try again then"

// Verdict is the effect of an action on one intent. For a dry run, it is the effect that the action would have.
type Verdict struct {
	IntentID      int64  `json:"intent_id"`
	AgentRunID    string `json:"agent_run_id"`
	StepID        string `json:"step_id"`
	ToolName      string `json:"tool_name"`
	BusinessScope string `json:"business_scope"`
	Before        string `json:"status_before"`
	After         string `json:"status_after"` // the same as Before, if refused
	Outcome       string `json:"outcome,omitempty"`
	Refused       string `json:"refused,omitempty"` // why the intent does not change
	Saga          string `json:"saga,omitempty"`    // state of its run's saga
}

func verdictOn(s standing, c change, r refusal) Verdict {
	verdict := Verdict{
		IntentID: s.IntentID, AgentRunID: s.AgentRunID, StepID: s.StepID, ToolName: s.ToolName, BusinessScope: s.BusinessScope,
		Before: s.Status, After: c.status, Outcome: c.outcome, Saga: s.Saga,
	}
	if r != "" {
		verdict.refuse(r)
	}
	return verdict
}

// IsUndo reports whether the intent is an undo and not a step.
func (v Verdict) IsUndo() bool { return isUndo(v.StepID) }

func (v *Verdict) refuse(r refusal) { v.After, v.Outcome, v.Refused = v.Before, "", string(r) }

//go:embed sql/standing.sql
var standingSQL string

// batchSize bounds how many intents are locked at once, and how much work is lost if the connection breaks.
const batchSize = 200

const refusedRace refusal = "a worker or another operator was quicker; look at it again"

// Preview returns the effect that an action would have on each of the intents that exist, and changes nothing. In
// each batch, the verdicts are in the order of the ids.
func (c *Console) Preview(ctx context.Context, action Action, intents []int64) ([]Verdict, error) {
	var verdicts []Verdict
	for batch := range slices.Chunk(intents, batchSize) {
		standings, err := standingsOf(ctx, c.conn, batch)
		if err != nil {
			return verdicts, err
		}
		for _, s := range standings {
			planned, refused := action.judge(s)
			verdicts = append(verdicts, verdictOn(s, planned, refused))
		}
	}
	return verdicts, nil
}

// Change takes an action on each of the intents that exist. Each bounded batch of them has a transaction of its
// own. With an error, Change returns the verdicts of the batches that were committed before.
func (c *Console) Change(ctx context.Context, action Action, by Signature, intents []int64) ([]Verdict, error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	var all []Verdict
	for batch := range slices.Chunk(intents, batchSize) {
		var verdicts []Verdict
		// The role's default isolation could be stricter. Then a conflict with a worker would be an error.
		err := pgx.BeginTxFunc(ctx, c.conn, pgpool.Transaction, func(tx pgx.Tx) (err error) {
			verdicts, err = changeBatch(ctx, tx, action, by, batch)
			return err
		})
		if err != nil {
			return all, fmt.Errorf("change intents: %w", err)
		}
		all = append(all, verdicts...)
	}
	return all, nil
}

func changeBatch(ctx context.Context, tx pgx.Tx, action Action, by Signature, intents []int64) ([]Verdict, error) {
	held, err := hold(ctx, tx, intents)
	if err != nil {
		return nil, err
	}
	standings, err := standingsOf(ctx, tx, held)
	if err != nil {
		return nil, err
	}
	verdicts := make([]Verdict, len(standings))
	var allowed decisions
	for i, s := range standings {
		planned, refused := action.judge(s)
		verdicts[i] = verdictOn(s, planned, refused)
		if refused == "" {
			allowed = append(allowed, decision{s, planned})
		}
	}
	won, err := allowed.carryOut(ctx, tx, by)
	if err != nil {
		return nil, err
	}
	for i := range verdicts {
		if v := &verdicts[i]; v.Refused == "" && !slices.Contains(won, v.IntentID) {
			v.refuse(refusedRace)
		}
	}
	return verdicts, nil
}

// hold keeps intents from being pruned until the transaction ends. It returns those that still exist.
func hold(ctx context.Context, tx pgx.Tx, intents []int64) ([]int64, error) {
	return collect(ctx, tx, "hold the intents", pgx.RowTo[int64], `SELECT outbox.hold($1)`, intents)
}

// querier is a connection, or a transaction on it.
type querier interface {
	Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error)
}

// collect returns all rows of a statement. An error begins with what, which names the operation.
func collect[T any](ctx context.Context, db querier, what string, row pgx.RowToFunc[T], statement string, args ...any) ([]T, error) {
	rows, _ := db.Query(ctx, statement, args...) // CollectRows returns the error too
	all, err := pgx.CollectRows(rows, row)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return all, nil
}

// collectOne returns the only row of a statement. It returns the error missing if there is no row.
func collectOne[T any](ctx context.Context, db querier, what string, missing error, row pgx.RowToFunc[T], statement string, args ...any) (one T, err error) {
	all, err := collect(ctx, db, what, row, statement, args...)
	switch {
	case err != nil:
		return one, err
	case len(all) == 0:
		return one, missing
	}
	return all[0], nil
}

func standingsOf(ctx context.Context, db querier, intents []int64) ([]standing, error) {
	return collect(ctx, db, "read where the intents stand", pgx.RowToStructByPos[standing], standingSQL, intents)
}

// decisions are the changes that one action makes, in the order of the intents' ids. All changes of an action are
// of the same form: they settle intents, requeue them, or bring them forward.
type decisions []decision

type decision struct {
	standing standing
	change   change
}

// carryOut makes the changes. It returns the intents that changed, which are those that have had no new attempt
// since the decision.
func (d decisions) carryOut(ctx context.Context, tx pgx.Tx, by Signature) ([]int64, error) {
	if len(d) == 0 {
		return nil, nil
	}
	send := d.settle
	switch {
	case d[0].change.requeue != nil:
		send = d.requeue
	case d[0].change.forward:
		send = d.bringForward
	}
	// CollectRows returns the error too.
	rows, _ := send(ctx, tx, by)
	won, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("append to the history: %w", err)
	}
	return won, nil
}

func (d decisions) settle(ctx context.Context, tx pgx.Tx, by Signature) (pgx.Rows, error) {
	intents, attempts := d.fences()
	queued := make([]bool, len(d))
	for i := range d {
		queued[i] = d[i].standing.Queued
	}
	same := d[0].change
	return tx.Query(ctx, sql.OperatorSettle, by.name(), same.outcome, same.status, same.providerRef, by.Reason, intents, attempts, queued)
}

func (d decisions) requeue(ctx context.Context, tx pgx.Tx, by Signature) (pgx.Rows, error) {
	intents, attempts := d.fences()
	outcomes := make([]string, len(d))
	firstAttempts := make([]*time.Time, len(d))
	maybeApplied := make([]bool, len(d))
	vias, lookups, newKeys, beforeLoss := make([]string, len(d)), make([]bool, len(d)), make([]bool, len(d)), make([]bool, len(d))
	for i := range d {
		back := d[i].change.requeue
		outcomes[i], firstAttempts[i], maybeApplied[i], vias[i] = d[i].change.outcome, back.firstAttemptAt, back.maybeApplied, back.via
		lookups[i], newKeys[i], beforeLoss[i] = back.lookup, back.newKey, back.beforeLoss
	}
	return tx.Query(ctx, sql.OperatorRequeue, by.name(), by.Reason, intents, attempts, outcomes, firstAttempts, maybeApplied, vias, lookups, newKeys, beforeLoss)
}

func (d decisions) bringForward(ctx context.Context, tx pgx.Tx, by Signature) (pgx.Rows, error) {
	intents, attempts := d.fences()
	return tx.Query(ctx, sql.OperatorForward, by.name(), by.Reason, intents, attempts)
}

// fences returns the intents with their newest attempt numbers. A change is made only if that number is still the
// newest.
func (d decisions) fences() (intents []int64, attempts []int32) {
	for i := range d {
		intents = append(intents, d[i].standing.IntentID)
		attempts = append(attempts, int32(d[i].standing.Attempt))
	}
	return intents, attempts
}

// History is a stretch of the database's history, between two points at which commits may have been lost. The
// newest one is valid.
type History struct {
	History          int        `json:"history"`
	SystemIdentifier *int64     `json:"system_identifier"` // nil if pg_control_system is not granted
	Timeline         *int       `json:"timeline"`          // nil if the server hides it
	LSN              *string    `json:"lsn"`               // position in the log at the newest heartbeat
	BeganAt          time.Time  `json:"began_at"`
	SeenAt           time.Time  `json:"seen_at"` // time of the newest heartbeat
	Change           *string    `json:"change"`  // how it differs from the history before; nil: it is the first
	Awaited          int        `json:"awaited"` // how many workers have not yet checked whether their commits are there
	Lost             bool       `json:"lost"`    // a worker has found that commits are missing
	AcceptedBy       *string    `json:"accepted_by"`
	AcceptedAt       *time.Time `json:"accepted_at"`
	Reason           *string    `json:"reason"`
}

// Histories lists the newest 100 histories, the newest first.
func (c *Console) Histories(ctx context.Context) ([]History, error) {
	return collect(ctx, c.conn, "list the stretches of the database's history", pgx.RowToStructByPos[History], `SELECT id, system_identifier, timeline, lsn::text, began_at, seen_at, change,
		pg_catalog.cardinality(awaited), lost, accepted_by, accepted_at, reason FROM outbox.history ORDER BY id DESC LIMIT 100`)
}

// ErrLost says that a history cannot be accepted as lossless.
var ErrLost = errors.New("a daemon misses commits that it had made: some were lost, so what was queued is in doubt")

// AcceptHistory lets daemons send all rows again after commits may have been lost. Rows that were queued before are
// then in doubt, unless lossless is true. It returns [ErrLost] if lossless is true, but a daemon has found that commits
// are missing. It reports false if that history did not wait to be accepted.
func (c *Console) AcceptHistory(ctx context.Context, history int, lossless bool, by Signature) (accepted bool, err error) {
	if err := by.Validate(); err != nil {
		return false, err
	}
	err = c.conn.QueryRow(ctx, `SELECT outbox.accept_history($1::int, $2::boolean, $3::text, $4::text)`, history, lossless, by.name(), by.Reason).Scan(&accepted)
	var refusal *pgconn.PgError
	switch {
	case errors.As(err, &refusal) && refusal.Code == "55000": // object_not_in_prerequisite_state
		return false, ErrLost
	case err != nil:
		return false, fmt.Errorf("accept the database's history: %w", err)
	}
	return accepted, nil
}
