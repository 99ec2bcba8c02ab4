package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// refusedTLS is the driver's error text for a server without TLS. The driver has no error value for it.
const refusedTLS = "server refused TLS connection"

// unconnected is the result of an attempt that got no connection, and so wrote nothing of the request. A wrong
// password is one of its causes: the server did not refuse the intent.
func unconnected(ctx context.Context, err error) dispatch.Result {
	outcome, class := dispatch.NotSent, evidence.Unsent(ctx, err)
	if class == "dial" && strings.Contains(err.Error(), refusedTLS) {
		class = "tls"
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && ctx.Err() == nil {
		class = stateClass(refusal.Code)
		if strings.HasPrefix(refusal.Code, "28") {
			outcome, class = dispatch.CredentialsRefused, "auth"
		}
	}
	return dispatch.Result{Outcome: outcome, ErrorClass: class}
}

// unbegun is the result of a failed BEGIN, which proves nothing about the intent.
func unbegun(ctx context.Context, err error) dispatch.Result {
	result := failed(ctx, err)
	result.Outcome = dispatch.NotSent
	return result
}

// failed is the outcome that the failure of a statement proves. The statement is a transaction of its own, or ends a
// transaction.
func failed(ctx context.Context, err error) dispatch.Result {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused(refusal)
	}
	if isUnsent(err) {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Unsent(ctx, err)}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: sentClass(ctx, err)}
}

// isUnsent reports that nothing of a statement was written. The driver also says so for a closed connection. But it
// may find a connection closed that was cut while it waited for the answer, so a closed connection proves nothing.
func isUnsent(err error) bool {
	return pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

func sentClass(ctx context.Context, err error) string {
	if errors.Is(err, pgconn.ErrConnClosed) && ctx.Err() == nil {
		return "reset"
	}
	return evidence.Sent(ctx, err)
}

// refused judges an ErrorResponse. An ERROR ends the statement and rolls back its transaction. A FATAL or PANIC ends
// the session. A pooler also sends it when it lost the server in the middle of a commit, so it leaves doubt.
func refused(refusal *pgconn.PgError) dispatch.Result {
	result := dispatch.Result{Outcome: outcomeOf(refusal.Code), ErrorClass: stateClass(refusal.Code), Healthy: isContention(refusal.Code)}
	if severity(refusal) != "ERROR" {
		result.Outcome = dispatch.Ambiguous
	}
	result.OfOperation = result.Outcome == dispatch.Throttled && isOfFunction(refusal.Code)
	if refusal.Code == raiseException { // the message is the function's own
		result.Problem = &dispatch.Problem{Title: evidence.Text(refusal.Message)}
	}
	return result
}

func severity(refusal *pgconn.PgError) string {
	if refusal.SeverityUnlocalized != "" {
		return refusal.SeverityUnlocalized
	}
	return refusal.Severity
}

// withoutEffect removes the doubt from a failure before COMMIT was sent. The server may still work on the statement,
// but no COMMIT will follow.
func withoutEffect(result dispatch.Result) dispatch.Result {
	if result.Outcome == dispatch.Ambiguous {
		result.Outcome = dispatch.Throttled
	}
	return result
}

// inDoubt makes a result ambiguous if the failed statement does not decide about the effect.
func inDoubt(result dispatch.Result) dispatch.Result {
	result.Outcome = dispatch.Ambiguous
	return result
}

// uncommitted is the result of a failed COMMIT.
func uncommitted(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rolled_back"}
	case isUnsent(err): // the function was called, but the COMMIT was not sent
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: sentClass(ctx, err)}
	}
	return failed(ctx, err)
}

// answer is the result of a function. An answer without a known outcome, or with an unknown field, is not accepted.
type answer struct {
	Outcome  dispatch.Outcome `json:"outcome"`
	Ref      any              `json:"ref"` // text or a number
	Response json.RawMessage  `json:"response"`
	Replayed bool             `json:"replayed"`
}

// parseAnswer returns the zero answer for a text that is not an answer.
func parseAnswer(text *string) answer {
	if text == nil {
		return answer{}
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(*text)))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	var a answer
	if err := decoder.Decode(&a); err != nil {
		return answer{}
	}
	if _, err := decoder.Token(); err != io.EOF {
		return answer{}
	}
	return a
}

// judge accepts an outcome that the tool's class allows. Any other answer is rolled back and counts as throttled:
// the function must be corrected, and the intent is valid.
func (a answer) judge(class dispatch.Class) dispatch.Result {
	reference, known := a.reference()
	if !a.isAllowed(class) || !known {
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "protocol"}
	}
	result := dispatch.Result{Outcome: a.Outcome, Response: evidence.JSON(a.Response, "application/json")}
	if a.Outcome == dispatch.Completed {
		result.ProviderRef = reference
		result.Replayed = a.Replayed
	} else {
		result.ErrorClass = "function_" + string(a.Outcome)
		result.Healthy = true // the recipient was able to answer
	}
	return result
}

func (a answer) isAllowed(class dispatch.Class) bool {
	switch a.Outcome {
	case dispatch.Completed, dispatch.Rejected, dispatch.Throttled:
		return true
	case dispatch.InFlight:
		return class != dispatch.NonIdempotent // the function would be called again
	case dispatch.Absent:
		return class == dispatch.ReadOnly
	}
	return false
}

func (a answer) reference() (string, bool) {
	if a.Ref == nil {
		return "", true
	}
	text, err := render.Scalar(a.Ref)
	return evidence.Text(text), err == nil
}

const raiseException = "P0001" // RAISE without an error code

// outcomeOf returns the meaning of an ERROR with this SQLSTATE for the intent (PostgreSQL documentation, appendix
// A). All codes but the ambiguous ones prove that the transaction was rolled back. They differ in whether the same
// statement may succeed later.
//
// A recipient that is misconfigured, or whose migrations are not yet applied, counts as throttled. A rejection would
// fail every intent, and begin a saga for each. Throttled intents open the breaker and wait in the queue.
func outcomeOf(state string) dispatch.Outcome {
	if len(state) != 5 {
		return dispatch.Ambiguous
	}
	switch state {
	case "40002": // integrity constraint
		return dispatch.Rejected
	case "40003": // statement completion unknown
		return dispatch.Ambiguous
	case "55000", "55006", "55P03", "55P04", "72000":
		return dispatch.Throttled
	}
	switch state[:2] {
	case "08", "58", "XX": // connection, system and internal errors, which poolers also send when they lost the server
		return dispatch.Ambiguous
	case "25", // a read-only server
		"40", // serialization failure, deadlock
		"53", // no room
		"57": // cancelled, shutting down
		return dispatch.Throttled
	case "0A", "0L", "0P", "26", "28", "2F", "34", "3D", "3F", "42", "F0", "HV": // the database does not match the configuration
		return dispatch.Throttled
	}
	return dispatch.Rejected // data, constraints, limits, and the errors that functions raise
}

// isOfFunction reports whether the function is missing, not permitted, or wrongly written. Functions of other
// operations may work.
func isOfFunction(state string) bool {
	return slices.Contains([]string{"0A", "2F", "3F", "42"}, state[:2])
}

// isContention reports whether other transactions blocked this one. The server itself works.
func isContention(state string) bool {
	switch state {
	case "40001", "40P01", "55P03", "55006": // serialization, deadlock, lock, object in use
		return true
	}
	return false
}

// stateClass returns the error class of a SQLSTATE.
func stateClass(state string) string {
	for _, c := range []byte(state) {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return "protocol"
		}
	}
	if len(state) != 5 {
		return "protocol"
	}
	return "sqlstate_" + strings.ToLower(state)
}
