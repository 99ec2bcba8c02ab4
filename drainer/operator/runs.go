package operator

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainer/postgres/sql"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

//go:embed sql/run_standing.sql
var runStandingSQL string

// ClosedRun is where a run that takes no further step stands.
type ClosedRun struct {
	AgentRunID string `json:"agent_run_id"`
	State      string `json:"state"`       // cancelled, or where its saga is
	Cancelled  int    `json:"cancelled"`   // steps that never had an effect
	InProgress int    `json:"in_progress"` // they end, and are recorded
	Unsettled  int    `json:"unsettled"`   // may have been applied: looked up and not sent again
	Completed  int    `json:"completed"`
}

// CancelRun closes a run for good: it takes no further step, what waits is
// taken out of the queue, and what is in flight ends. With compensate, what it
// completed is undone after that, as if a step had failed.
//
// The first commit closes it for every worker. If a later one fails, the lanes
// stop what waits.
func (c *Console) CancelRun(ctx context.Context, agentRunID string, compensate bool, by Signature) (ClosedRun, error) {
	closes := cancelRunSQL
	if compensate {
		closes = compensateSQL
	}
	if err := c.changeSaga(ctx, agentRunID, by, closes, CloseRun.cure, nil); err != nil {
		return ClosedRun{}, err
	}
	if err := c.stopWaiting(ctx, agentRunID, by); err != nil {
		return ClosedRun{}, err
	}
	run := ClosedRun{AgentRunID: agentRunID}
	err := c.conn.QueryRow(ctx, runStandingSQL, agentRunID).Scan(&run.State, &run.Cancelled, &run.InProgress, &run.Unsettled, &run.Completed)
	if err != nil {
		return run, fmt.Errorf("the run is closed, but read where it stands: %w", err)
	}
	return run, nil
}

// stopWaiting locks few rows at a time, and waits for none.
func (c *Console) stopWaiting(ctx context.Context, agentRunID string, by Signature) error {
	for {
		var stopped int64
		err := pgx.BeginTxFunc(ctx, c.conn, pgpool.Transaction, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql.OperatorStopWaiting, agentRunID, by.name(), by.Reason, batchSize)
			stopped = tag.RowsAffected()
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("the run is closed, but take what waits out of the queue: %w", err)
		case stopped == 0:
			return nil
		}
	}
}

// Saga is an agent run that is or was rolled back.
type Saga struct {
	AgentRunID string     `json:"agent_run_id"`
	State      string     `json:"state"`
	Epoch      int        `json:"epoch"` // raised by every retry
	Cause      *int64     `json:"cause"` // the intent whose failure began it; null: an operator did
	BegunAt    time.Time  `json:"begun_at"`
	EndedAt    *time.Time `json:"ended_at"`
	ChangedBy  *string    `json:"changed_by"`
	Reason     *string    `json:"reason"`
}

// SagaStates lists where a saga can stand.
var SagaStates = []string{"begun", "compensated", "compensation_failed", "resolved", "cancelled"}

// SagaStory is a saga with all that its run did and undid.
type SagaStory struct {
	Saga
	WaitsFor []Wait     `json:"waits_for"` // empty unless it is under way
	Steps    []SagaStep `json:"steps"`     // in the order in which they were enqueued
	Timeline []Event    `json:"timeline"`  // the attempts of steps and undos, as they ended
}

// SagaStep is a forward intent, and its undo if there is one.
type SagaStep struct {
	Intent
	Undo *Intent `json:"undo"`
}

// Event is one attempt, and whose it was.
type Event struct {
	IntentID int64 `json:"intent_id"`
	Attempt
}

// ErrNoRun says that the outbox holds no intent of an agent run.
var ErrNoRun = errors.New("no agent run has this id; `drainer intents list` shows those there are")

// ErrNoSaga says that an agent run has no saga.
var ErrNoSaga = errors.New("this agent run has no saga")

const sagaColumns = `agent_run_id, state, epoch, cause, begun_at, ended_at, changed_by, reason`

// SagaFilter narrows a listing; what is empty does not.
type SagaFilter struct {
	State string
	Since time.Time // begun then or later
	Until time.Time // begun before
	After string    // those behind the saga of this run: the last one of the page before
	Limit int
}

// Sagas lists the newest first.
func (c *Console) Sagas(ctx context.Context, filter SagaFilter) ([]Saga, error) {
	states := SagaStates // the newest of each are read by the index
	if filter.State != "" {
		states = []string{filter.State}
	}
	return collect(ctx, c.conn, "list sagas", pgx.RowToStructByPos[Saga], `SELECT saga.* FROM pg_catalog.unnest($1::text[]) AS listed (state) CROSS JOIN LATERAL (
		SELECT `+sagaColumns+` FROM outbox.saga WHERE state = listed.state
			AND ($3::timestamptz IS NULL OR begun_at >= $3::timestamptz) AND ($4::timestamptz IS NULL OR begun_at < $4::timestamptz)
			AND ($5::text = '' OR (begun_at, agent_run_id) < (SELECT b.begun_at, b.agent_run_id FROM outbox.saga b WHERE b.agent_run_id = $5::text))
		ORDER BY begun_at DESC, agent_run_id DESC LIMIT $2) saga
		ORDER BY begun_at DESC, agent_run_id DESC LIMIT $2`, states, filter.Limit, orNull(filter.Since), orNull(filter.Until), filter.After)
}

// SagaOf returns the state, the steps and the waits of one run.
func (c *Console) SagaOf(ctx context.Context, agentRunID string) (*SagaStory, error) {
	saga, err := c.saga(ctx, agentRunID)
	if err != nil {
		return nil, err
	}
	story := &SagaStory{Saga: saga}
	if err := c.fill(ctx, story); err != nil {
		return nil, err
	}
	return story, nil
}

// saga returns ErrNoSaga for a run that was never rolled back.
func (c *Console) saga(ctx context.Context, agentRunID string) (Saga, error) {
	return collectOne(ctx, c.conn, "show the saga", ErrNoSaga, pgx.RowToStructByPos[Saga], `SELECT `+sagaColumns+` FROM outbox.saga WHERE agent_run_id = $1::text`, agentRunID)
}

func (c *Console) fill(ctx context.Context, story *SagaStory) error {
	intents, err := collect(ctx, c.conn, "read the run's intents", pgx.RowToStructByPos[Intent], `SELECT `+statusColumns+` FROM outbox.standing WHERE agent_run_id = $1::text ORDER BY intent_id`, story.AgentRunID)
	if err != nil {
		return err
	}
	if story.Steps, err = c.pair(ctx, story.AgentRunID, intents); err != nil {
		return err
	}
	for _, intent := range intents {
		history, err := c.history(ctx, intent.IntentID)
		if err != nil {
			return err
		}
		for _, attempt := range history {
			story.Timeline = append(story.Timeline, Event{intent.IntentID, attempt})
		}
	}
	slices.SortStableFunc(story.Timeline, func(a, b Event) int { return a.FinishedAt.Compare(b.FinishedAt) })
	story.WaitsFor = waitsFor(story.State, story.Steps)
	return nil
}

// pair gives each forward intent its undo.
func (c *Console) pair(ctx context.Context, agentRunID string, intents []Intent) (steps []SagaStep, err error) {
	rows, _ := c.conn.Query(ctx, `SELECT id, compensates FROM outbox.intent WHERE agent_run_id = $1::text AND compensates IS NOT NULL`, agentRunID)
	undoes := map[int64]int64{}
	var undo, step int64
	if _, err := pgx.ForEachRow(rows, []any{&undo, &step}, func() error {
		undoes[undo] = step
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the run's undos: %w", err)
	}
	undos := map[int64]*Intent{} // by the step
	for i := range intents {
		undos[undoes[intents[i].IntentID]] = &intents[i]
	}
	for _, intent := range intents {
		if !isUndo(intent.StepID) {
			steps = append(steps, SagaStep{intent, undos[intent.IntentID]})
		}
	}
	return steps, nil
}

// Wait is an intent whose end a saga waits for.
type Wait struct {
	IntentID int64  `json:"intent_id"`
	Status   string `json:"status"`
	Human    bool   `json:"needs_human"` // only a human can find out how it ended
}

// waitsFor follows the order of a rollback: steps end first, then one undo at a
// time.
func waitsFor(state string, steps []SagaStep) []Wait {
	waits := []Wait{}
	if state != "begun" {
		return waits
	}
	for _, step := range steps {
		switch step.Status {
		case "pending", "in_progress", "unknown":
			waits = append(waits, step.wait())
		}
	}
	if len(waits) > 0 {
		return waits
	}
	for _, step := range steps {
		if step.Undo != nil && step.Undo.FinishedAt == nil {
			waits = append(waits, step.Undo.wait())
		}
	}
	return waits
}

func (i Intent) wait() Wait {
	return Wait{IntentID: i.IntentID, Status: i.Status, Human: i.Status == "unknown" && i.FinishedAt != nil}
}

// Standing lists the steps whose effects are there and not undone.
func (s *SagaStory) Standing() []int64 {
	standing := []int64{}
	for _, step := range s.Steps {
		if step.Status == "completed" {
			standing = append(standing, step.IntentID)
		}
	}
	return standing
}

const undoPrefix = "compensate:"

func isUndo(stepID string) bool { return strings.HasPrefix(stepID, undoPrefix) }

//go:embed sql/stuck_undos.sql
var stuckUndosSQL string

// Where these return no row, nothing was changed: $1 run, $2 operator, $3 reason.
const (
	cancelRunSQL  = `SELECT WHERE outbox.operate_run($1::text, 'cancel_run', $2::text, $3::text)`
	compensateSQL = `SELECT WHERE outbox.operate_run($1::text, 'compensate', $2::text, $3::text)`
)

// A completed undo is not written to any more.
const holdUndosSQL = `SELECT count(*) FROM outbox.hold(ARRAY(SELECT id FROM outbox.intent u WHERE agent_run_id = $1::text AND compensates IS NOT NULL
	AND NOT EXISTS (SELECT FROM outbox.attempt a WHERE a.intent_id = u.id AND a.status = 'completed')))`

// SagaError says why a saga is not changed, and what can be done instead.
type SagaError struct{ State, Cure string }

func (e *SagaError) Error() string {
	return "the saga is " + e.State + "; " + e.Cure
}

// ErrNotStuck says that a step cannot have been undone by hand.
var ErrNotStuck = errors.New("only a step of this run that is compensation_failed can be called undone; see drainer sagas show")

// Compensate takes a run back although nothing failed. What is in flight
// ends first; then completed steps are undone.
func (c *Console) Compensate(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, compensateSQL, RollBackRun.cure, nil)
}

// RetrySaga lets a saga that failed go on, in a new epoch: undos that ended
// otherwise than well are tried again, under their keys. Steps that people have
// undone themselves become compensated instead, and older ones are next. newKeys gives
// undos that failed a new key each: their providers may have saved the refusal. What may
// have been applied keeps its key.
func (c *Console) RetrySaga(ctx context.Context, agentRunID string, undone []int64, newKeys bool, by Signature) error {
	goOn := func(ctx context.Context, tx pgx.Tx, agentRunID string, by Signature) error {
		if err := reopenSteps(ctx, tx, agentRunID, undone, by); err != nil {
			return err
		}
		return requeueUndos(ctx, tx, agentRunID, newKeys, by)
	}
	return c.changeSaga(ctx, agentRunID, by, sql.OperatorRetrySaga, GoOnWithSaga.cure, goOn)
}

// ResolveSaga ends a saga that people have settled outside.
func (c *Console) ResolveSaga(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, sql.OperatorResolveSaga, EndSaga.cure, refuseWhileUndoing)
}

// refuseWhileUndoing looks after the undos that waited are gone. The statement
// is newer than the locks: an undo that a worker took in between is seen.
func refuseWhileUndoing(ctx context.Context, tx pgx.Tx, agentRunID string, _ Signature) error {
	var open bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.intent u JOIN outbox.standing s ON s.intent_id = u.id
		WHERE u.agent_run_id = $1::text AND u.compensates IS NOT NULL AND s.finished_at IS NULL)`, agentRunID).Scan(&open)
	switch {
	case err != nil:
		return fmt.Errorf("look for an undo that is under way: %w", err)
	case open:
		return errUndoing
	}
	return nil
}

var errUndoing = &SagaError{State: "under way", Cure: "an undo of it is on its way, or in doubt; see drainer sagas show"}

// RunAction changes a whole run: [RollBackRun], [CloseRun], [GoOnWithSaga] or [EndSaga].
type RunAction struct {
	from    []string // where its saga may stand; empty: it has none
	cure    string   // where it stands elsewhere
	after   string
	becomes map[string]string // what becomes of steps, by their status; others stay as they are
	undos   bool              // those that wait are not sent any more; it is refused where another has not ended
}

// After says what becomes of the run.
func (a RunAction) After() string { return a.after }

// stopped says what becomes of a step that waits, as its run ends.
const stopped = "cancelled, or looked up if it may have been applied"

// What Compensate, CancelRun, RetrySaga and ResolveSaga do.
var (
	RollBackRun = RunAction{[]string{"", "cancelled"}, "a run is compensated once; see drainer sagas show", "rollback begun", map[string]string{
		"completed": "undone, if its tool says how", "pending": stopped, "in_progress": "awaited first", "unknown": "awaited first",
	}, false}
	CloseRun = RunAction{[]string{""}, "its run takes no further step already; see drainer sagas show", "it takes no further step", map[string]string{
		"pending": stopped, "in_progress": "recorded as it ends, and not sent again",
	}, false}
	GoOnWithSaga = RunAction{
		[]string{"compensation_failed"},
		"only one whose compensation failed can be retried; an undo that waits is sent at once by drainer intents retry --now",
		"the rollback goes on",
		map[string]string{"completed": "undone, if its tool says how", "compensation_failed": "undone, if its tool says how"},
		false,
	}
	EndSaga = RunAction{[]string{"begun", "compensation_failed"}, "only one that is under way or failed can be resolved", "the rollback is over", nil, true}
)

// RunPreview has the effect of an action on a run and its steps. All of it is refused, or nothing is.
type RunPreview struct {
	Before  string // where its saga stands
	After   string
	Refused string
	Steps   []StepPreview
	First   int // so many steps are listed, and later ones become the same; 0: all are
}

// StepPreview has the effect on a step, or on an undo that waits.
type StepPreview struct {
	IntentID      int64
	ToolName      string
	IsUndo        bool
	Before, After string // the same where it stays as it is
}

// PreviewRun says what an action would do to a run, and changes nothing.
func (c *Console) PreviewRun(ctx context.Context, action RunAction, agentRunID string) (*RunPreview, error) {
	story, err := c.Story(ctx, agentRunID)
	switch {
	case err != nil:
		return nil, err
	case !action.undos:
		return action.preview(story, nil), nil
	}
	undos, err := collect(ctx, c.conn, "read the run's undos", pgx.RowTo[int64], `SELECT u.id FROM outbox.intent u JOIN outbox.standing s ON s.intent_id = u.id
		WHERE u.agent_run_id = $1::text AND u.compensates IS NOT NULL AND s.finished_at IS NULL`, agentRunID)
	if err != nil {
		return nil, err
	}
	open, err := standingsOf(ctx, c.conn, undos)
	if err != nil {
		return nil, err
	}
	return action.preview(story, open), nil
}

// preview is pure. open are the undos that have not ended.
func (a RunAction) preview(story *RunStory, open []standing) *RunPreview {
	p := &RunPreview{Before: "no rollback", After: a.after}
	state := ""
	if story.Saga != nil {
		state = story.Saga.State
		p.Before = state
	}
	switch {
	case slices.Contains(a.from, state):
	case state == "":
		p.Refused = ErrNoSaga.Error()
	default:
		p.Refused = (&SagaError{state, a.cure}).Error()
	}
	for _, step := range story.Steps {
		p.Steps = append(p.Steps, StepPreview{step.IntentID, step.ToolName, false, step.Status, cmp.Or(a.becomes[step.Status], step.Status)})
	}
	if story.lacksSteps {
		p.First = len(p.Steps)
	}
	for _, undo := range open {
		if undo.Queued && !undo.MaybeApplied {
			p.Steps = append(p.Steps, StepPreview{undo.IntentID, undo.ToolName, true, undo.Status, "cancelled"})
		} else if p.Refused == "" {
			p.Refused = errUndoing.Error()
		}
	}
	return p
}

// changeSaga runs a statement that says whether it changed the saga, and what
// must follow in the same transaction. It holds the undos before the saga, as others do who write to both: late
// evidence and other operators. Otherwise each could wait for the other.
func (c *Console) changeSaga(ctx context.Context, agentRunID string, by Signature, statement, cure string,
	then func(context.Context, pgx.Tx, string, Signature) error,
) error {
	if err := by.Validate(); err != nil {
		return err
	}
	err := pgx.BeginTxFunc(ctx, c.conn, pgpool.Transaction, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, holdUndosSQL, agentRunID); err != nil {
			return fmt.Errorf("hold its undos: %w", err)
		}
		tag, err := tx.Exec(ctx, statement, agentRunID, by.name(), by.Reason)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return whyUnchanged(ctx, tx, agentRunID, cure)
		case then == nil:
			return nil
		}
		return then(ctx, tx, agentRunID, by)
	})
	var refused *SagaError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused), errors.Is(err, ErrNoRun), errors.Is(err, ErrNoSaga), errors.Is(err, ErrNotStuck):
		return err // it says all there is to say
	}
	return fmt.Errorf("change the saga: %w", err)
}

func whyUnchanged(ctx context.Context, tx pgx.Tx, agentRunID, cure string) error {
	var state *string
	var known bool
	err := tx.QueryRow(ctx, `SELECT (SELECT state FROM outbox.saga WHERE agent_run_id = $1::text),
		EXISTS (SELECT FROM outbox.intent WHERE agent_run_id = $1::text)`, agentRunID).Scan(&state, &known)
	switch {
	case err != nil:
		return err
	case state != nil:
		return &SagaError{State: *state, Cure: cure}
	case known:
		return ErrNoSaga
	}
	return ErrNoRun
}

func reopenSteps(ctx context.Context, tx pgx.Tx, agentRunID string, undone []int64, by Signature) error {
	stuck, err := collect(ctx, tx, "open its steps again", pgx.RowTo[int64], sql.OperatorReopenSteps, agentRunID, by.name(), by.Reason, undone)
	if err != nil {
		return err
	}
	for _, step := range undone {
		if !slices.Contains(stuck, step) {
			return fmt.Errorf("intent %d: %w", step, ErrNotStuck)
		}
	}
	return nil
}

// requeueUndos sends undos again that ended otherwise than well. What may have
// been applied is asked about first, or repeated where its tool says that this
// is safe: the engine knows.
func requeueUndos(ctx context.Context, tx pgx.Tx, agentRunID string, newKeys bool, by Signature) error {
	undos, err := collect(ctx, tx, "find undos that ended badly", pgx.RowTo[int64], stuckUndosSQL, agentRunID)
	if err != nil {
		return err
	}
	standings, err := standingsOf(ctx, tx, undos)
	if err != nil {
		return err
	}
	var again decisions
	for _, s := range standings {
		back := &requeue{firstAttemptAt: s.FirstAttemptAt, maybeApplied: s.MaybeApplied, lookup: s.MaybeApplied, beforeLoss: s.BeforeLoss}
		if s.MaybeApplied {
			back.via = s.Via
		}
		outcome := "retried"
		if newKeys && s.Status == "failed" && !s.MaybeApplied { // with evidence that nothing was applied
			outcome, back.firstAttemptAt, back.newKey = "retried_new_key", nil, true
		}
		again = append(again, decision{s, change{outcome: outcome, status: "pending", requeue: back}})
	}
	_, err = again.carryOut(ctx, tx, by)
	return err
}

// Run is an agent run, as far as a chunk of the newest intents tells.
type Run struct {
	AgentRunID string    `json:"agent_run_id"`
	Intents    int       `json:"intents"` // undos included
	Open       int       `json:"open"`    // pending or in progress
	Unknown    int       `json:"unknown"`
	Failed     int       `json:"failed"` // forward steps, and undos that failed
	Saga       *string   `json:"saga"`   // its state; nil: the run was never rolled back
	BegunAt    time.Time `json:"begun_at"`
	LastAt     time.Time `json:"last_at"` // when something of it was enqueued or ended last
}

// RunsChunk is how many intents one page of runs looks at.
const RunsChunk = 1000

// Runs groups the newest intents below an id by their run, the newest first; 0 begins with
// the newest of all. next is the id for the next page, and 0 at the end. A run of which a page
// shows a part comes again on the next page.
func (c *Console) Runs(ctx context.Context, below int64) (runs []Run, next int64, err error) {
	if below == 0 {
		below = math.MaxInt64
	}
	rows, _ := c.conn.Query(ctx, `SELECT s.agent_run_id, count(*)::int,
			(count(*) FILTER (WHERE s.status IN ('pending', 'in_progress')))::int,
			(count(*) FILTER (WHERE s.status = 'unknown'))::int,
			(count(*) FILTER (WHERE s.status IN ('failed', 'compensation_failed')))::int,
			(SELECT state FROM outbox.saga g WHERE g.agent_run_id = s.agent_run_id),
			min(s.created_at), max(coalesce(s.finished_at, s.created_at)), min(s.intent_id), sum(count(*)) OVER ()::bigint
		FROM (SELECT * FROM outbox.standing WHERE intent_id < $1::bigint ORDER BY intent_id DESC LIMIT $2::int) s
		GROUP BY s.agent_run_id ORDER BY max(s.intent_id) DESC`, below, RunsChunk)
	lowest, seen := below, int64(0)
	var run Run
	var first int64
	_, err = pgx.ForEachRow(rows, []any{
		&run.AgentRunID, &run.Intents, &run.Open, &run.Unknown, &run.Failed, &run.Saga,
		&run.BegunAt, &run.LastAt, &first, &seen,
	}, func() error {
		runs, lowest = append(runs, run), min(lowest, first)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	if seen == RunsChunk {
		next = lowest
	}
	return runs, next, nil
}

// Span is one attempt in the time of its run.
type Span struct {
	IntentID      int64      `json:"intent_id"`
	Attempt       int        `json:"attempt"`
	StartedAt     *time.Time `json:"started_at"` // nil: nothing was sent, as when an operator decides
	FinishedAt    time.Time  `json:"finished_at"`
	Outcome       string     `json:"outcome"`
	Status        string     `json:"status"`
	Lookup        bool       `json:"lookup"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
}

// RunStory is a run with its steps, their undos and all attempts.
type RunStory struct {
	AgentRunID string     `json:"agent_run_id"`
	Saga       *Saga      `json:"saga"` // nil: it was never rolled back
	Steps      []SagaStep `json:"steps"`
	Spans      []Span     `json:"spans"` // by intent and attempt
	WaitsFor   []Wait     `json:"waits_for"`
	Truncated  bool       `json:"truncated"` // the run has more steps or attempts than the limits
	lacksSteps bool       // it has more steps
}

// Conceal takes out what providers answered.
func (s *RunStory) Conceal() {
	for _, step := range s.Steps {
		if step.Undo != nil {
			step.Undo.Response = nil
		}
	}
	for i := range s.Steps {
		s.Steps[i].Response = nil
	}
}

// Limits of a run's story. A longer run is told by its first steps.
const (
	storySteps = 500
	storySpans = 5000
)

// Story returns the first 500 intents of a run and their first 5,000 attempts.
func (c *Console) Story(ctx context.Context, agentRunID string) (*RunStory, error) {
	story := &RunStory{AgentRunID: agentRunID}
	intents, err := collect(ctx, c.conn, "read the run's intents", pgx.RowToStructByPos[Intent], `SELECT `+statusColumns+` FROM outbox.standing WHERE agent_run_id = $1::text
		ORDER BY intent_id LIMIT $2::int`, agentRunID, storySteps+1)
	if err != nil {
		return nil, err
	}
	if len(intents) == 0 {
		return nil, ErrNoRun
	}
	if len(intents) > storySteps {
		intents, story.Truncated, story.lacksSteps = intents[:storySteps], true, true
	}
	ids := make([]int64, len(intents))
	for i, intent := range intents {
		ids[i] = intent.IntentID
	}
	story.Spans, err = collect(ctx, c.conn, "read the run's attempts", pgx.RowToStructByPos[Span], `SELECT a.intent_id, a.attempt, a.started_at, a.finished_at, a.outcome, a.status, a.lookup, a.next_attempt_at
		FROM outbox.attempt a WHERE a.intent_id = ANY ($1::bigint[]) ORDER BY a.intent_id, a.attempt LIMIT $2::int`,
		ids, storySpans+1)
	if err != nil {
		return nil, err
	}
	if len(story.Spans) > storySpans {
		story.Spans, story.Truncated = story.Spans[:storySpans], true
	}
	if story.Steps, err = c.pair(ctx, agentRunID, intents); err != nil {
		return nil, err
	}
	saga, err := c.saga(ctx, agentRunID)
	switch {
	case errors.Is(err, ErrNoSaga):
		return story, nil
	case err != nil:
		return nil, err
	}
	story.Saga, story.WaitsFor = &saga, waitsFor(saga.State, story.Steps)
	return story, nil
}
