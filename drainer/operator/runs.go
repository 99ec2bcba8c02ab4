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

// ClosedRun is the state of a run that takes no further step.
type ClosedRun struct {
	AgentRunID string `json:"agent_run_id"`
	State      string `json:"state"`       // cancelled, or another state of its saga
	Cancelled  int    `json:"cancelled"`   // steps that have had no effect
	InProgress int    `json:"in_progress"` // steps that end and are recorded
	Unsettled  int    `json:"unsettled"`   // steps that may have been applied: looked up, but not sent again
	Completed  int    `json:"completed"`
}

// CancelRun closes a run for good. The run takes no further step, its waiting rows are cancelled, and its rows in
// flight end. With compensate, its completed steps are undone after that, as if a step had failed.
//
// The first commit closes the run for all workers. If a later commit fails, the lanes cancel the waiting rows.
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

// stopWaiting cancels the waiting rows of a run. It locks at most batchSize rows at a time, and waits for no lock.
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
	Epoch      int        `json:"epoch"` // each retry increments it
	Cause      *int64     `json:"cause"` // the intent whose failure began it; nil: an operator began it
	BegunAt    time.Time  `json:"begun_at"`
	EndedAt    *time.Time `json:"ended_at"`
	ChangedBy  *string    `json:"changed_by"`
	Reason     *string    `json:"reason"`
}

// SagaStates lists the states of a saga.
var SagaStates = []string{"begun", "compensated", "compensation_failed", "resolved", "cancelled"}

// SagaStory is a saga with all steps, undos and attempts of its run.
type SagaStory struct {
	Saga
	WaitsFor []Wait     `json:"waits_for"` // empty unless the saga is begun
	Steps    []SagaStep `json:"steps"`     // in the order in which they were enqueued
	Timeline []Event    `json:"timeline"`  // the attempts of steps and undos, in the order in which they ended
}

// SagaStep is a forward intent, and its undo if there is one.
type SagaStep struct {
	Intent
	Undo *Intent `json:"undo"`
}

// Event is one attempt of an intent.
type Event struct {
	IntentID int64 `json:"intent_id"`
	Attempt
}

// ErrNoRun says that the outbox holds no intent of an agent run.
var ErrNoRun = errors.New("no agent run has this id; `drainer intents list` shows those there are")

// ErrNoSaga says that an agent run has no saga.
var ErrNoSaga = errors.New("this agent run has no saga")

const sagaColumns = `agent_run_id, state, epoch, cause, begun_at, ended_at, changed_by, reason`

// SagaFilter narrows a listing. An empty field does not narrow it.
type SagaFilter struct {
	State string
	Since time.Time // begun then or later
	Until time.Time // begun before
	After string    // only sagas behind the saga of this run, the last of the page before
	Limit int
}

// Sagas lists sagas, the newest first.
func (c *Console) Sagas(ctx context.Context, filter SagaFilter) ([]Saga, error) {
	states := SagaStates // the newest sagas of each state are read by the index
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

// SagaOf returns the saga of a run with its story, or ErrNoSaga.
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

// saga returns the saga of a run, or ErrNoSaga.
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

// waitsFor returns the intents whose end a begun saga waits for: its open steps, or, if none is open, its undo.
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

// Standing lists the steps whose effects exist and are not undone.
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

// $1 run, $2 operator, $3 reason. Each of these returns a row if it changed the run, and none otherwise.
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

// ErrNotStuck says that a step is not one that can be called undone by hand.
var ErrNotStuck = errors.New("only a step of this run that is compensation_failed can be called undone; see drainer sagas show")

// Compensate rolls a run back although no step failed. Its rows in flight end first. Then its completed steps are
// undone.
func (c *Console) Compensate(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, compensateSQL, RollBackRun.cure, nil)
}

// RetrySaga lets a failed saga go on, in a new epoch. Undos that settled without completing are sent again under their
// keys. The steps in undone, which people have undone by hand, become compensated instead. newKeys gives each failed
// undo a new key, since its provider may have saved the refusal with the old one. An undo that may have been applied
// keeps its key.
func (c *Console) RetrySaga(ctx context.Context, agentRunID string, undone []int64, newKeys bool, by Signature) error {
	goOn := func(ctx context.Context, tx pgx.Tx, agentRunID string, by Signature) error {
		if err := reopenSteps(ctx, tx, agentRunID, undone, by); err != nil {
			return err
		}
		return requeueUndos(ctx, tx, agentRunID, newKeys, by)
	}
	return c.changeSaga(ctx, agentRunID, by, sql.OperatorRetrySaga, GoOnWithSaga.cure, goOn)
}

// ResolveSaga ends a saga whose remaining work people have done by other means.
func (c *Console) ResolveSaga(ctx context.Context, agentRunID string, by Signature) error {
	return c.changeSaga(ctx, agentRunID, by, sql.OperatorResolveSaga, EndSaga.cure, refuseWhileUndoing)
}

// refuseWhileUndoing returns errUndoing if an undo has not ended. It runs after the waiting undos were cancelled, as a
// statement of its own. So its snapshot is newer than the locks, and it sees an undo that a worker claimed in between.
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
	from    []string          // the states of its saga in which it is allowed; "": it has no saga
	cure    string            // what can be done in other states
	after   string            // the effect on the run
	becomes map[string]string // the effect on steps, by their status; other steps do not change
	undos   bool              // waiting undos are cancelled; the action is refused if another undo has not ended
}

// After returns the action's effect on the run, as a text for people.
func (a RunAction) After() string { return a.after }

// stopped is the effect on a waiting step when its run ends.
const stopped = "cancelled, or looked up if it may have been applied"

// These are the actions of Compensate, CancelRun, RetrySaga and ResolveSaga, in this order.
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

// RunPreview is the effect that an action would have on a run and its steps. The action is refused as a whole or not at
// all.
type RunPreview struct {
	Before  string // state of its saga
	After   string
	Refused string // why the action is refused; empty: it is not
	Steps   []StepPreview
	First   int // how many steps are listed, if there are more, with the same effects; 0: all are listed
}

// StepPreview is the effect on a step, or on a waiting undo.
type StepPreview struct {
	IntentID      int64
	ToolName      string
	IsUndo        bool
	Before, After string // the same if the action does not change it
}

// PreviewRun returns the effect that an action would have on a run. It changes nothing.
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

// preview is a pure function. open holds the undos that have not ended.
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

// changeSaga runs a statement that changes a saga, and then, if it returned a row, the function then in the same
// transaction. If it returned no row, the error says why, with cure as the remedy. It locks the undos before the saga, as
// late evidence and other operators do. Otherwise each could wait for the other.
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
		return err // its text needs no context
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

// requeueUndos requeues the undos that settled without completing. An undo that may have been applied is looked up
// first. If its tool makes a repetition safe, the engine repeats it instead.
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
		if newKeys && s.Status == "failed" && !s.MaybeApplied { // there is evidence that it was not applied
			outcome, back.firstAttemptAt, back.newKey = "retried_new_key", nil, true
		}
		again = append(again, decision{s, change{outcome: outcome, status: "pending", requeue: back}})
	}
	_, err = again.carryOut(ctx, tx, by)
	return err
}

// Run summarizes the intents of an agent run that are in one chunk of the newest intents.
type Run struct {
	AgentRunID string    `json:"agent_run_id"`
	Intents    int       `json:"intents"` // undos included
	Open       int       `json:"open"`    // pending or in progress
	Unknown    int       `json:"unknown"`
	Failed     int       `json:"failed"` // steps and undos that failed, and steps that could not be undone
	Saga       *string   `json:"saga"`   // state of its saga; nil: the run has none
	BegunAt    time.Time `json:"begun_at"`
	LastAt     time.Time `json:"last_at"` // when an intent of it was last enqueued or ended
}

// RunsChunk is how many intents each page of runs looks at.
const RunsChunk = 1000

// Runs groups the newest intents below an id by their run, and returns the runs with the newest first. below = 0 begins
// with the newest intent of all. next is the id for the next page, and 0 at the end. If a page covers only a part of a
// run's intents, the next page lists the run again.
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

// Span is one attempt, for a run's chart over time.
type Span struct {
	IntentID      int64      `json:"intent_id"`
	Attempt       int        `json:"attempt"`
	StartedAt     *time.Time `json:"started_at"` // nil: nothing was sent, as in an operator's entry
	FinishedAt    time.Time  `json:"finished_at"`
	Outcome       string     `json:"outcome"`
	Status        string     `json:"status"`
	Lookup        bool       `json:"lookup"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
}

// RunStory is a run with its steps, their undos and all attempts.
type RunStory struct {
	AgentRunID string     `json:"agent_run_id"`
	Saga       *Saga      `json:"saga"` // nil: the run has none
	Steps      []SagaStep `json:"steps"`
	Spans      []Span     `json:"spans"` // in the order of intent and attempt
	WaitsFor   []Wait     `json:"waits_for"`
	Truncated  bool       `json:"truncated"` // the run has more steps or attempts than the limits
	lacksSteps bool       // the run has more steps than the limit
}

// Conceal removes the responses of providers.
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

// These are the limits of a run's story. The story of a longer run has only its first steps and attempts.
const (
	storySteps = 500
	storySpans = 5000
)

// Story returns the first 500 intents of a run and their first 5,000 attempts, or ErrNoRun.
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
