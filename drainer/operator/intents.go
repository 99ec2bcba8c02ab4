package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/remedy"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// Intent is a row of the view outbox.standing.
type Intent struct {
	IntentID       int64           `json:"intent_id"`
	AgentRunID     string          `json:"agent_run_id"`
	StepID         string          `json:"step_id"`
	ToolName       string          `json:"tool_name"`
	BusinessScope  string          `json:"business_scope"`
	Provider       string          `json:"provider"`
	IdempotencyKey string          `json:"idempotency_key"`
	Status         string          `json:"status"`
	Attempts       int             `json:"attempts"`
	NextAttemptAt  *time.Time      `json:"next_attempt_at"`
	LastOutcome    *string         `json:"last_outcome"`
	LastError      *string         `json:"last_error"`
	HTTPStatus     *int            `json:"http_status"`
	Response       json.RawMessage `json:"response"`
	ProviderRef    *string         `json:"provider_ref"`
	CreatedAt      time.Time       `json:"created_at"`
	FinishedAt     *time.Time      `json:"finished_at"`
}

// Statuses lists the statuses of an intent.
var Statuses = []string{
	"pending", "in_progress", "completed", "failed", "unknown", "cancelled", "compensated", "compensation_failed",
}

// Attempt is one entry of an intent's history: a dispatch, or an operator's change.
type Attempt struct {
	Attempt         int             `json:"attempt"`
	Worker          string          `json:"worker"` // a worker's id, saga, or operator:NAME with the name that the operator gave
	Login           string          `json:"login"`  // the role that wrote it, as the database saw
	StartedAt       *time.Time      `json:"started_at"`
	FinishedAt      time.Time       `json:"finished_at"`
	IdempotencyKey  string          `json:"idempotency_key"` // an operator may have asked for a new one
	Outcome         string          `json:"outcome"`
	Status          string          `json:"status"`
	NextAttemptAt   *time.Time      `json:"next_attempt_at"`
	HTTPStatus      *int            `json:"http_status"`
	Error           *string         `json:"error"`
	ProviderRef     *string         `json:"provider_ref"`
	Response        json.RawMessage `json:"response"`
	ResponseHeaders json.RawMessage `json:"response_headers"`
	Replayed        bool            `json:"replayed"`
	Problem         json.RawMessage `json:"problem"`   // problem details (RFC 9457) of the provider or of drainer
	Lookup          bool            `json:"lookup"`    // it was a lookup, not a send
	ServedBy        *string         `json:"served_by"` // the fallback that was called
	Reason          *string         `json:"reason"`
}

// Dossier is an intent with its payload, its history and the gate that it waits for.
type Dossier struct {
	Intent
	Payload json.RawMessage `json:"payload"`
	TraceID string          `json:"trace_id,omitempty"` // from the traceparent that the agent stored with the intent
	History []Attempt       `json:"history"`
	Gate    *Provider       `json:"waits_for,omitempty"` // the shut provider or operation; nil if none is
}

// Conceal removes the payload, and the long texts of providers: responses, headers and problems.
func (d *Dossier) Conceal() {
	d.Payload, d.Response = nil, nil
	for i := range d.History {
		attempt := &d.History[i]
		attempt.Response, attempt.ResponseHeaders, attempt.Problem = nil, nil, nil
	}
}

const statusColumns = `intent_id, agent_run_id, step_id, tool_name, business_scope, provider, idempotency_key, status,
	attempts, next_attempt_at, last_outcome, last_error, http_status, response, provider_ref, created_at, finished_at`

const (
	showSQL      = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id = $1::bigint`
	showTupleSQL = `SELECT ` + statusColumns + ` FROM outbox.standing
		WHERE (agent_run_id, step_id, tool_name, business_scope) = ($1::text, $2::text, $3::text, $4::text)`
)

// writtenSQL reads a payload and its trace id. Like adapters, it prefers the spelling of traceparent in lower case.
const writtenSQL = `SELECT payload, coalesce((SELECT pg_catalog.split_part(value, '-', 2)
		FROM pg_catalog.jsonb_each_text(CASE WHEN pg_catalog.jsonb_typeof(headers) = 'object' THEN headers ELSE '{}' END)
		WHERE lower(key) = 'traceparent' ORDER BY key COLLATE "C" DESC LIMIT 1), '')
	FROM outbox.intent WHERE id = $1::bigint`

var isTraceID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Show returns an intent by its id, or ErrNotFound.
func (c *Console) Show(ctx context.Context, intentID int64) (*Dossier, error) {
	return c.show(ctx, showSQL, intentID)
}

// ShowTuple returns an intent by its four-tuple, or ErrNotFound.
func (c *Console) ShowTuple(ctx context.Context, t dispatch.Tuple) (*Dossier, error) {
	return c.show(ctx, showTupleSQL, t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope)
}

func (c *Console) show(ctx context.Context, statement string, args ...any) (*Dossier, error) {
	intent, err := collectOne(ctx, c.conn, "show intent", ErrNotFound, pgx.RowToStructByPos[Intent], statement, args...)
	if err != nil {
		return nil, err
	}
	dossier := &Dossier{Intent: intent}
	if err = c.conn.QueryRow(ctx, writtenSQL, intent.IntentID).Scan(&dossier.Payload, &dossier.TraceID); err != nil {
		return nil, fmt.Errorf("read what the agent wrote: %w", err)
	}
	if !isTraceID.MatchString(dossier.TraceID) {
		dossier.TraceID = ""
	}
	if dossier.History, err = c.history(ctx, intent.IntentID); err != nil {
		return nil, err
	}
	dossier.Gate, err = c.gateOf(ctx, intent)
	return dossier, err
}

// Reveal records who asks for an intent's payload and responses, and why. Then it returns the intent with them.
func (c *Console) Reveal(ctx context.Context, by Signature, intentID int64) (*Dossier, error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	agentRunID, err := c.RunOf(ctx, intentID)
	if err != nil {
		return nil, err
	}
	var recorded bool
	err = c.conn.QueryRow(ctx, `SELECT outbox.operate_run($1::text, 'reveal', $2::text, $3::text)`,
		agentRunID, by.name(), fmt.Sprintf("intent %d: %s", intentID, by.Reason)).Scan(&recorded)
	switch {
	case err != nil:
		return nil, fmt.Errorf("record a reveal: %w", err)
	case !recorded:
		return nil, ErrNotFound
	}
	return c.Show(ctx, intentID)
}

// gateOf returns the shut provider or operation for which a row waits, or nil if there is none. A row is parked under
// the name of the shut operation. Before it is parked, it waits under its provider's name.
func (c *Console) gateOf(ctx context.Context, intent Intent) (*Provider, error) {
	places, err := collect(ctx, c.conn, "find where the intent waits", pgx.RowTo[string], `SELECT provider FROM outbox.queue WHERE intent_id = $1::bigint`, intent.IntentID)
	if err != nil || len(places) == 0 {
		return nil, err
	}
	place := places[0]
	provider, _, _ := strings.Cut(place, "/")
	names := []string{place, provider}
	if intent.Status == string(dispatch.StatusPending) { // the queued row is not a lookup
		names = append(names, intent.ToolName)
	}
	for _, name := range names {
		gates, err := c.gates(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(gates) == 1 && gates[0].isShut() {
			return &gates[0], nil
		}
	}
	return nil, nil
}

func (c *Console) history(ctx context.Context, intentID int64) ([]Attempt, error) {
	return collect(ctx, c.conn, "read the intent's history", pgx.RowToStructByPos[Attempt], `SELECT attempt, coalesce(operator, worker), login, started_at, finished_at,
		outbox.idempotency_key(agent_run_id, step_id, tool_name, business_scope, namespace, NULL, 1 + (count(*) FILTER (
			WHERE outcome IN ('retried_new_key', 'retried_new_key_may_duplicate')) OVER (ORDER BY attempt))::int),
		outcome, status, a.next_attempt_at,
		http_status, error, provider_ref, response, response_headers, replayed, problem, lookup, served_by, reason
		FROM outbox.attempt a JOIN outbox.intent i ON i.id = a.intent_id WHERE intent_id = $1::bigint ORDER BY attempt`, intentID)
}

// Retry requeues settled intents, due now, under the same key and with all their tries. If an intent may have been
// applied, a repetition must be safe or MayDuplicate true.
type Retry struct {
	// NewKey sends an intent under a new key, since a provider that has saved its refusal would
	// repeat it under the old key. It needs evidence that nothing was applied, or MayDuplicate.
	NewKey bool
	// MayDuplicate accepts a second effect if nothing rules it out. The doubt
	// stays, because a later refusal proves nothing about the first effect.
	MayDuplicate bool
	// Tool is the tool for which MayDuplicate holds: intents of other tools are refused.
	// nil: all tools.
	Tool     *string
	PolicyOf PolicyOf // nil if there is no configuration
}

func (r Retry) judge(s standing) (change, refusal) {
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Queued && s.Lookup:
		return change{}, "its lookup waits to ask the provider; let it, or resolve the intent"
	case s.Queued:
		return change{}, "it waits in the queue already"
	case s.Saga != "":
		return change{}, r.inSaga(s)
	case r.MayDuplicate && r.Tool != nil && *r.Tool != s.ToolName:
		return change{}, refusal(fmt.Sprintf("its tool is %s, and not %q: only the tool that you name may have a second effect", s.ToolName, *r.Tool))
	}
	switch s.Status {
	case "failed", "unknown", "cancelled":
		return r.again(s)
	case "completed":
		return change{}, "it is completed; for a second effect enqueue it under another step_id or business_scope"
	}
	return change{}, refusal("it is " + s.Status + "; only failed, unknown and cancelled intents can be retried")
}

// inSaga refuses to retry an intent whose run has a saga, and names the command that is possible instead.
func (Retry) inSaga(s standing) refusal {
	switch {
	case s.Saga == "compensation_failed" && (s.isUndo() || s.Status == "compensation_failed"):
		return refusal(fmt.Sprintf("its run is being compensated; drainer sagas retry --intent %d", s.IntentID))
	case s.Saga == "begun" && s.Status == "unknown":
		return refusal(fmt.Sprintf("its saga waits for it; resolve it: drainer intents resolve %d", s.IntentID))
	case s.Saga == "cancelled":
		return "its run was cancelled and stays closed; start a new run"
	}
	return "its run is being compensated, or was, and stays closed; start a new run"
}

func (r Retry) again(s standing) (change, refusal) {
	back := change{outcome: "retried", status: "pending", requeue: &requeue{firstAttemptAt: s.FirstAttemptAt, maybeApplied: s.MaybeApplied}}
	if s.MaybeApplied && !s.isAtEither() {
		back.requeue.via = s.Via
	}
	if r.NewKey {
		return r.underNewKey(s, back)
	}
	danger := r.danger(s)
	switch {
	case danger == "":
		back.requeue.beforeLoss = s.BeforeLoss
		return back, ""
	case !r.MayDuplicate:
		return change{}, s.inDoubt(danger)
	}
	// The engine sends a row that may have been applied only in the first half of the key's TTL.
	// To accept a duplicate starts that clock again.
	back.outcome, back.requeue.firstAttemptAt = "retried_may_duplicate", nil
	return back, ""
}

// underNewKey requeues an intent under a new key with a new clock. A doubt stays with the row, because a request that
// was sent under the old key may still arrive.
func (r Retry) underNewKey(s standing, back change) (change, refusal) {
	back.outcome, back.requeue.firstAttemptAt, back.requeue.newKey = "retried_new_key", nil, true
	switch {
	case s.Status == "cancelled":
		return change{}, "no provider refused it; retry it under its key, without --new-key"
	case s.MaybeApplied && !r.MayDuplicate:
		return change{}, s.inDoubt("its provider cannot tell that another key is the same effect")
	case s.MaybeApplied:
		back.outcome = "retried_new_key_may_duplicate"
	}
	return back, ""
}

// danger says why a repetition could have a second effect. It is empty if it cannot.
func (r Retry) danger(s standing) string {
	if !s.MaybeApplied {
		return ""
	}
	if r.PolicyOf == nil {
		return "no configuration was given with --config, so it is not known whether repeating it is safe"
	}
	policy, known := r.PolicyOf.of(s)
	switch {
	case !known:
		return "the configuration does not know its tool"
	case policy.Class == dispatch.NonIdempotent:
		return "its tool is non_idempotent: repeating does it again"
	case s.isAtEither(), s.BeforeLoss && r.hasFallback(s): // the engine would settle it as unknown
		return "commits were lost: its provider's fallback may have applied it"
	case !policy.MayStillSend(dispatch.History{MaybeApplied: true, SinceFirstSend: s.sinceFirst()}):
		since := s.sinceFirst().Truncate(time.Second)
		if since > time.Minute {
			since = since.Truncate(time.Minute) // so that a web page that shows it changes only once a minute
		}
		return fmt.Sprintf("its provider may have forgotten the key: it was first sent %s ago, and half of the key's ttl is %s",
			since, policy.KeyTTL/2)
	}
	return ""
}

// hasFallback reports whether the engine assumes, for a step from before a loss, that its provider's fallback may have
// applied it.
func (r Retry) hasFallback(s standing) bool {
	s.Via = "" // so that PolicyOf.of reads the policy of its own provider
	policy, _ := r.PolicyOf.of(s)
	return policy.HasFallback && policy.Class != dispatch.ReadOnly && !s.isUndo()
}

// BringForward makes rows due that wait for a later time, for which a provider or an agent asked. It changes
// nothing else of a row, so it costs no try and ends no doubt. It takes undos like other rows.
type BringForward struct {
	// Scheduled includes intents for which an agent asked for a later time. Bulk changes
	// leave it false.
	Scheduled bool
}

func (f BringForward) judge(s standing) (change, refusal) {
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Settled:
		return change{}, refusal("it is " + s.Status + " and waits for nothing; retry it without --now")
	case s.Due:
		return change{}, "it is due already; its provider may be paused, busy or away: see drainer providers list"
	case s.NotBefore != nil && !f.Scheduled:
		return change{}, refusal(fmt.Sprintf("its agent asked for it at %s; name it alone to send it before", s.NotBefore.UTC().Format(time.RFC3339)))
	case s.Lookup && !s.Asked:
		return change{}, "its lookup waits until no send of it can arrive any more; asked before that, its provider could miss one"
	}
	return change{outcome: "brought_forward", status: s.Status, forward: true}, ""
}

// Cancel ends waiting intents that cannot have been applied. The status cancelled is a promise that there was no
// effect.
type Cancel struct{}

func (Cancel) judge(s standing) (change, refusal) {
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Settled:
		return change{}, refusal("it is " + s.Status + " already; only what waits in the queue can be cancelled")
	case s.Saga != "" && s.isUndo():
		return change{}, refusal(fmt.Sprintf("it takes a step of its run back; to end that: drainer sagas resolve --intent %d", s.IntentID))
	case s.Saga != "":
		return change{}, "its run takes no further step; what still waits is cancelled by itself"
	case s.Lookup, s.MaybeApplied:
		return change{}, "an attempt may have been applied, and cancelled would say that none was; find out, then resolve it as completed or failed"
	}
	return change{outcome: "cancelled", status: "cancelled"}, ""
}

// Resolve records an outcome that a human has found out and that drainer cannot find out. It refuses intents whose
// provider reported completion.
type Resolve struct {
	As          dispatch.Status // StatusCompleted or StatusFailed
	ProviderRef string          // the effect's id at the provider, if known
}

// ErrResolution says that a Resolve is not valid for any intent.
var ErrResolution = errors.New("an intent is resolved as completed or as failed, and only a completed one has a provider reference, of one line of plain text")

// Validate returns ErrResolution if the fields are not valid, independently of the intent.
func (r Resolve) Validate() error {
	switch {
	case !isLine(r.ProviderRef):
		return ErrResolution
	case r.As == dispatch.StatusCompleted, r.As == dispatch.StatusFailed && r.ProviderRef == "":
		return nil
	}
	return ErrResolution
}

const resolved = "resolved"

func (r Resolve) judge(s standing) (change, refusal) {
	resolution := change{outcome: resolved, status: string(r.As), providerRef: r.ProviderRef}
	switch {
	case s.inProgress():
		return change{}, refusedInProgress
	case s.Queued && !s.Lookup && !s.MaybeApplied:
		return change{}, "it waits, and nothing of it can have been applied; cancel it instead"
	case s.Saga != "" && s.Status != string(dispatch.StatusUnknown):
		return change{}, r.refuseInSaga(s)
	case s.Queued:
		return resolution, ""
	}
	return resolution, r.refuseSettled(s)
}

func (Resolve) refuseInSaga(s standing) refusal {
	switch {
	case s.Status == "compensation_failed":
		return refusal(fmt.Sprintf("its undo failed; if you undid it by hand: drainer sagas retry --intent %[1]d --undone %[1]d", s.IntentID))
	case s.Saga == "cancelled":
		return "its run was cancelled; of such a run only unknown intents can be resolved"
	}
	return "its run is being compensated, or was; of such a run only unknown intents can be resolved"
}

func (r Resolve) refuseSettled(s standing) refusal {
	if s.MaybeApplied {
		return ""
	}
	switch dispatch.Status(s.Status) {
	case r.As:
		if s.LastOutcome == resolved && r.ProviderRef != "" && r.ProviderRef != s.ProviderRef {
			return ""
		}
		return refusal("it is " + s.Status + " already")
	case dispatch.StatusFailed:
		return ""
	case dispatch.StatusCompleted:
		if s.LastOutcome == resolved {
			return ""
		}
		return "its provider reported that it is completed; only what an operator resolved can be resolved otherwise"
	}
	return refusal("it is " + s.Status + "; only unknown and failed intents, and those that wait and may have been applied, can be resolved")
}

// Receipt is the result of outbox.enqueue.
type Receipt struct {
	IntentID       int64  `json:"intent_id"`
	Created        bool   `json:"created"` // false: an intent with this key already existed
	Status         string `json:"status"`
	IdempotencyKey string `json:"idempotency_key"`
}

// ErrUnserved says that daemons have announced their tools, and that this tool is not among them.
var ErrUnserved = errors.New("no daemon serves the tool")

// ErrUnanswered says that an intent may be recorded or not. After any other error of Enqueue, it is not recorded.
var ErrUnanswered = errors.New("its commit was not answered, so it may be recorded")

// Enqueue commits one intent in a transaction of its own. It refuses a tool that no daemon has announced, even if agents
// may enqueue it, because a person means a tool that exists. Before the first daemon has started, it accepts all names.
func (c *Console) Enqueue(ctx context.Context, tuple dispatch.Tuple, payload json.RawMessage) (Receipt, error) {
	var receipt Receipt
	if err := tuple.Validate(); err != nil {
		return receipt, err
	}
	served, err := collect(ctx, c.conn, "enqueue: read which tools are served", pgx.RowTo[string], `SELECT name FROM outbox.tool WHERE name = $1::text
		UNION (SELECT name FROM outbox.tool WHERE provider = split_part($1::text, '/'::text, 1) ORDER BY name LIMIT 1000)
		UNION (SELECT DISTINCT provider FROM outbox.tool WHERE NOT EXISTS (SELECT FROM outbox.tool WHERE provider = split_part($1::text, '/'::text, 1)) ORDER BY 1 LIMIT 1000)
		ORDER BY name`, tuple.ToolName)
	if err != nil {
		return receipt, err
	}
	if len(served) > 0 && !slices.Contains(served, tuple.ToolName) {
		known := spelling.Suggest(tuple.ToolName, served)
		if !strings.Contains(served[0], "/") {
			known = "none serves its provider; " + spelling.Suggest(tuple.Provider(), served)
		}
		return receipt, fmt.Errorf("enqueue: %w %q; %s; if it is new in the configuration, start or reload a daemon first",
			ErrUnserved, tuple.ToolName, known)
	}
	// require_state demands that a transaction has written an agent's state, which is shown by its transaction id. A
	// person has no state to write, so the statement takes a transaction id first.
	err = c.conn.QueryRow(ctx, `SELECT intent_id, created, status, idempotency_key FROM (SELECT pg_current_xact_id() AS id OFFSET 0) t,
		outbox.enqueue(CASE WHEN t.id IS NOT NULL THEN $1::text END, $2, $3, $4, $5)`,
		tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope, payload,
	).Scan(&receipt.IntentID, &receipt.Created, &receipt.Status, &receipt.IdempotencyKey)
	switch {
	case err == nil:
		return receipt, nil
	case isRefused(err), pgconn.SafeToRetry(err): // SafeToRetry: it was not sent
		return receipt, fmt.Errorf("enqueue: %w%s", err, hint(err))
	}
	return receipt, fmt.Errorf("enqueue: %w: %w", ErrUnanswered, err)
}

// isRefused reports whether the server rolled the statement's transaction back. An error that is FATAL or of class 08
// (connection exception) may come after the commit. A pooler that lost its server leaves SeverityUnlocalized empty.
func isRefused(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.SeverityUnlocalized == "ERROR" && refused.Code != "40003" && !strings.HasPrefix(refused.Code, "08")
}

// hint returns the hint of an error of the schema, which contains no payload and no key, or the remedy of
// another refusal. It is empty if there is neither.
func hint(err error) string {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) {
		return ""
	}
	if isOurs := strings.HasPrefix(refusal.Code, "OB"); isOurs && refusal.Hint != "" {
		return ". " + refusal.Hint
	}
	if known, found := remedy.OfEnqueue(refusal.Code); found && !strings.HasPrefix(refusal.Code, "OB") {
		return "; " + known.Do
	}
	return ""
}
