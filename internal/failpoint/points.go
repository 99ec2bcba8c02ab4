// Package failpoint names the places in a daemon's work at which a test may stop it. In the released program a
// point does nothing. The build tag failpoints compiles them in, and DRAINER_FAILPOINTS arms some of them:
//
//	DRAINER_FAILPOINTS=claim_committed=kill@3,heartbeat=fail@*
//
// An armed point acts at its first hit, at the n-th hit with @n, or at each hit with @*. It writes the line
// "failpoint NAME ACTION" to stderr, and then
//
//	kill  the process ends by SIGKILL
//	stop  the process stops until SIGCONT
//	hold  the goroutine waits until the process gets SIGUSR1
//	hang  the goroutine waits forever
//	fail  the call returns an error
//	panic the goroutine panics
package failpoint

// Point is a place in the program.
type Point string

// The points in the life of a row and of a saga.
const (
	ClaimCommitted  Point = "claim_committed"  // rows are claimed, and none is sent
	BeforeSend      Point = "before_send"      // a row has passed every gate
	AfterReply      Point = "after_reply"      // only this process knows the outcome
	SettleCommitted Point = "settle_committed" // the row is settled, and the lane does not know yet
	BatchReply      Point = "batch_reply"      // fail: the batch is committed, but its reply is lost
	Heartbeat       Point = "heartbeat"        // fail: the heartbeat is not written
	ClosedRead      Point = "closed_read"      // the session knows which of its claimed runs are closed
	ClaimsLocked    Point = "claims_locked"    // claims of a dead worker, or lost by theirs, are locked; their rows are not read yet
	ClaimsRead      Point = "claims_read"      // the rows of these claims are read, but not decided yet
	SagaLocked      Point = "saga_locked"      // a pass has locked its sagas, and has read none yet
	UndoWritten     Point = "undo_written"     // an undo is enqueued, and its pass is not committed
	PageSent        Point = "page_sent"        // the channel has the page, and the outbox does not know yet
)

// Points lists all points.
var Points = []Point{
	ClaimCommitted, BeforeSend, AfterReply, SettleCommitted, BatchReply, Heartbeat, ClosedRead,
	ClaimsLocked, ClaimsRead, SagaLocked, UndoWritten, PageSent,
}
