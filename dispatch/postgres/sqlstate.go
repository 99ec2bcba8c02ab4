package postgres

import (
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

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
