// Package failpoint names the places of a daemon's work where a test may take
// it away. In the program that ships a point is nothing; the build tag
// failpoints compiles them in, and DRAINER_FAILPOINTS arms some of them:
//
//	DRAINER_FAILPOINTS=claim_committed=kill@3,heartbeat=fail@*
//
// An armed point acts at its first hit, at the n-th with @n, or at each with
// @*. It says so in a line on stderr, "failpoint NAME ACTION", and then
//
//	kill  the process ends by SIGKILL
//	stop  the process stops until SIGCONT
//	hold  the goroutine waits until the process gets SIGUSR1
//	hang  the goroutine waits forever
//	fail  the call returns an error
//	panic the goroutine panics
package failpoint

// Point is a place.
type Point string

// The journey of a row, and of a saga.
const (
	ClaimCommitted  Point = "claim_committed"  // rows are claimed, none has begun
	BeforeSend      Point = "before_send"      // a row has passed every gate
	AfterReply      Point = "after_reply"      // its outcome is known to this process alone
	SettleCommitted Point = "settle_committed" // it is settled, and the lane does not know yet
	BatchReply      Point = "batch_reply"      // fail: the batch's commit stands, its reply is lost
	Heartbeat       Point = "heartbeat"        // fail: the beat is not written
	ClosedRead      Point = "closed_read"      // the session knows which of its claimed runs are closed
	ClaimsLocked    Point = "claims_locked"    // whose worker is dead, or does not remember them; their rows are not read yet
	ClaimsRead      Point = "claims_read"      // their rows are read, and not judged yet
	SagaLocked      Point = "saga_locked"      // a pass has taken its sagas, and looked at none yet
	UndoWritten     Point = "undo_written"     // an undo is enqueued, its pass not committed
	PageSent        Point = "page_sent"        // a pager has it, the outbox does not know yet
)

// Points are all of them.
var Points = []Point{
	ClaimCommitted, BeforeSend, AfterReply, SettleCommitted, BatchReply, Heartbeat, ClosedRead,
	ClaimsLocked, ClaimsRead, SagaLocked, UndoWritten, PageSent,
}
