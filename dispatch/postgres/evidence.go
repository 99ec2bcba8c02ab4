package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

const maxMessageShown = 500 // characters of what a function raised

// refusedTLS is all by which the driver tells that a server speaks no TLS.
const refusedTLS = "server refused TLS connection"

// unconnected is the result of an attempt that got no connection, and so wrote
// nothing of the request. A wrong password is among these: it is not the
// intent that was refused.
func unconnected(ctx context.Context, err error) dispatch.Result {
	class := failure.Unsent(ctx, err)
	if class == "dial" && strings.Contains(err.Error(), refusedTLS) {
		class = "tls"
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && ctx.Err() == nil {
		class = stateClass(refusal.Code)
		if strings.HasPrefix(refusal.Code, "28") {
			class = "auth"
		}
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
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
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: failure.Unsent(ctx, err)}
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
	return failure.Sent(ctx, err)
}

// refused reads an ErrorResponse. An ERROR ends the statement and rolls back
// its transaction. A FATAL or PANIC ends the session, and a pooler between
// says so, too, when it lost the server in the middle of a commit.
func refused(refusal *pgconn.PgError) dispatch.Result {
	result := dispatch.Result{Outcome: outcomeOf(refusal.Code), ErrorClass: stateClass(refusal.Code), Healthy: isContention(refusal.Code)}
	if severity(refusal) != "ERROR" {
		result.Outcome = dispatch.Ambiguous
	}
	if refusal.Code == raiseException { // the words of whoever wrote the function
		result.Problem = &dispatch.Problem{Title: storable.First(refusal.Message, maxMessageShown)}
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
// server may still be at work, but nobody will ever commit it.
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
