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

// refusedTLS is the driver's error text for a server without TLS. It has no
// other sign.
const refusedTLS = "server refused TLS connection"

// unconnected is the result of an attempt that got no connection, and so wrote
// nothing of the request. A wrong password is among these: it is not the
// intent that was refused.
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

// unbegun is the result of a BEGIN that failed: it says nothing of the intent.
func unbegun(ctx context.Context, err error) dispatch.Result {
	result := failed(ctx, err)
	result.Outcome = dispatch.NotSent
	return result
}

// failed is the result of a statement that is its own transaction, or that
// ends one, by what its failure proves.
func failed(ctx context.Context, err error) dispatch.Result {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused(refusal)
	}
	if isUnsent(err) {
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Unsent(ctx, err)}
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: sentClass(ctx, err)}
}

// isUnsent reports that nothing of a statement was written. The driver says so
// of a closed connection, too, and that is also what it finds when it looks
// again at one that was cut while it waited for the answer.
func isUnsent(err error) bool {
	return pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

func sentClass(ctx context.Context, err error) string {
	if errors.Is(err, pgconn.ErrConnClosed) && ctx.Err() == nil {
		return "reset"
	}
	return evidence.Sent(ctx, err)
}

// refused reads an ErrorResponse. An ERROR ends the statement and rolls back
// its transaction. A FATAL or PANIC ends the session, and a pooler between
// says so, too, when it lost the server in the middle of a commit.
func refused(refusal *pgconn.PgError) dispatch.Result {
	result := dispatch.Result{Outcome: outcomeOf(refusal.Code), ErrorClass: stateClass(refusal.Code), Healthy: isContention(refusal.Code)}
	if severity(refusal) != "ERROR" {
		result.Outcome = dispatch.Ambiguous
	}
	result.OfOperation = result.Outcome == dispatch.Throttled && isOfFunction(refusal.Code)
	if refusal.Code == raiseException { // the words of the function itself
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

// withoutEffect takes the doubt out of a failure before COMMIT was sent. The
// server may still be at work, but no COMMIT will follow.
func withoutEffect(result dispatch.Result) dispatch.Result {
	if result.Outcome == dispatch.Ambiguous {
		result.Outcome = dispatch.Throttled
	}
	return result
}

// inDoubt is for a failure that proves nothing of the effect, whatever it
// proves of its statement.
func inDoubt(result dispatch.Result) dispatch.Result {
	result.Outcome = dispatch.Ambiguous
	return result
}

// uncommitted is the result of a COMMIT that failed.
func uncommitted(ctx context.Context, err error) dispatch.Result {
	switch {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "rolled_back"}
	case isUnsent(err): // the call was sent, the COMMIT was not
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: sentClass(ctx, err)}
	}
	return failed(ctx, err)
}

// answer is the result of a function. Nothing in it is guessed: without a known
// outcome, or with a field of another name, it is no answer.
type answer struct {
	Outcome  dispatch.Outcome `json:"outcome"`
	Ref      any              `json:"ref"` // text or a number
	Response json.RawMessage  `json:"response"`
	Replayed bool             `json:"replayed"`
}

// parseAnswer returns the zero answer for what is none.
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

// judge believes an outcome that the tool's class allows. What is no answer
// is rolled back and counts as a recipient that is not ready: its function is
// what has to be mended, and the intent is good.
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
		result.Healthy = true // it was well enough to say so
	}
	return result
}

func (a answer) isAllowed(class dispatch.Class) bool {
	switch a.Outcome {
	case dispatch.Completed, dispatch.Rejected, dispatch.Throttled:
		return true
	case dispatch.InFlight:
		return class != dispatch.NonIdempotent // it would be called again
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

const raiseException = "P0001" // RAISE without a code of its own

// outcomeOf says what an ERROR with this SQLSTATE means for the intent
// (PostgreSQL documentation, appendix A). All but the doubtful ones prove that
// the transaction was rolled back; what is left to say is whether the same
// statement may succeed later.
//
// A recipient that is misconfigured, or behind in its migrations, counts as
// not ready: refusing would fail every intent, and begin a saga for each. As
// throttled they open the breaker and wait in the queue.
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
	case "08", "58", "XX": // the connection, the system, an internal error: also what poolers say of a server they lost
		return dispatch.Ambiguous
	case "25", // a server that is read-only
		"40", // serialization failure, deadlock
		"53", // no room
		"57": // cancelled, shutting down
		return dispatch.Throttled
	case "0A", "0L", "0P", "26", "28", "2F", "34", "3D", "3F", "42", "F0", "HV": // not as the configuration says
		return dispatch.Throttled
	}
	return dispatch.Rejected // data, constraints, limits, and what functions raise
}

// isOfFunction reports a function that is missing, not permitted, or written wrong. It says
// nothing of those that other operations call.
func isOfFunction(state string) bool {
	return slices.Contains([]string{"0A", "2F", "3F", "42"}, state[:2])
}

// isContention reports that other transactions stood in the way of this one.
// The server is well.
func isContention(state string) bool {
	switch state {
	case "40001", "40P01", "55P03", "55006": // serialization, deadlock, lock, in use
		return true
	}
	return false
}

// stateClass is the error class of a SQLSTATE.
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
