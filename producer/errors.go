package producer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Errors for use with [errors.Is].
var (
	// ErrNotInTransaction says that the given value is not a transaction. The intent could not commit together
	// with the agent's state.
	ErrNotInTransaction = errors.New("producer: not in a transaction")
	// ErrNotCommitted says that the intent does not exist: its transaction is still open, or was rolled back.
	ErrNotCommitted = errors.New("producer: not committed")
	// ErrNotAllowed says that the login lacks the role outbox_agent, which an
	// administrator grants.
	ErrNotAllowed = errors.New("producer: not allowed")
	// ErrTransactionAborted says that an earlier statement failed and aborted
	// the caller's transaction: roll it back, and run all of it again.
	ErrTransactionAborted = errors.New("producer: an earlier statement aborted this transaction")
	// ErrPending says that the wait ended before the intent. The intent will still be carried out, so this is not
	// a failure.
	ErrPending = errors.New("producer: pending")

	ErrKeyTaken     = errors.New("producer: this step was already asked for with another payload") // OB001
	ErrRunClosed    = errors.New("producer: the run is closed")                                    // OB002
	ErrInvalid      = errors.New("producer: invalid intent")                                       // OB003
	ErrUnknownTool  = errors.New("producer: unknown tool")                                         // OB004
	ErrOtherTenant  = errors.New("producer: the run belongs to another tenant")                    // OB005
	ErrLimitReached = errors.New("producer: a limit is reached")                                   // OB006

	ErrFailed    = errors.New("producer: failed")    // there was no effect
	ErrUnknown   = errors.New("producer: unknown")   // there may have been an effect, and a person was paged
	ErrCancelled = errors.New("producer: cancelled") // it was stopped before any effect
	ErrUndone    = errors.New("producer: undone")    // the effect was undone, or a person has to undo it
)

var refusals = map[string]error{
	"OB001": ErrKeyTaken, "OB002": ErrRunClosed, "OB003": ErrInvalid,
	"OB004": ErrUnknownTool, "OB005": ErrOtherTenant, "OB006": ErrLimitReached,
}

var unfinished = map[string]error{
	"failed": ErrFailed, "unknown": ErrUnknown, "cancelled": ErrCancelled,
	"compensated": ErrUndone, "compensation_failed": ErrUndone,
}

// Refused describes an intent that the outbox refused. Nothing was recorded, and the transaction is aborted.
type Refused struct {
	SQLState string
	Message  string
	Hint     string
	// For ErrKeyTaken: the first intent, its key and its status.
	IntentID int64
	Key      string
	Status   string

	cause error
}

func (r *Refused) Error() string        { return "producer: " + r.Message }
func (r *Refused) Unwrap() error        { return r.cause }
func (r *Refused) Is(target error) bool { return target == refusals[r.SQLState] }

var firstIntent = regexp.MustCompile(`^Intent (\d+) holds the key (\S+) and is (\w+)\.$`)

// refusal returns the typed error for the server's refusal. Other errors go to misuse.
func refusal(err error) error {
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) || refusals[coded.SQLState()] == nil {
		return misuse(err)
	}
	refused := &Refused{SQLState: coded.SQLState(), Message: refusals[coded.SQLState()].Error(), cause: err}
	var detail string
	var server *pgconn.PgError
	var libpq interface{ Get(field byte) string } // that of lib/pq, which this module does not import
	switch {
	case errors.As(err, &server):
		refused.Message, refused.Hint, detail = server.Message, server.Hint, server.Detail
	case errors.As(err, &libpq):
		refused.Message, refused.Hint, detail = libpq.Get('M'), libpq.Get('H'), libpq.Get('D')
	}
	if first := firstIntent.FindStringSubmatch(detail); first != nil {
		refused.IntentID, _ = strconv.ParseInt(first[1], 10, 64)
		refused.Key, refused.Status = first[2], first[3]
	}
	refused.Message = strings.TrimPrefix(strings.TrimPrefix(refused.Message, "producer: "), "outbox: ")
	return refused
}

// misuse names causes that the program or its administrator has to correct, and returns other errors unchanged.
func misuse(err error) error {
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) {
		return err
	}
	switch coded.SQLState() {
	case "42501": // the server names only the object that the login may not use
		return fmt.Errorf("%w: the login may lack the role outbox_agent: %w", ErrNotAllowed, err)
	case "25P02":
		return fmt.Errorf("%w: %w", ErrTransactionAborted, err)
	}
	return err
}

func invalid(format string, args ...any) error {
	return &Refused{SQLState: "OB003", Message: fmt.Sprintf(format, args...)}
}

// NotCompleted describes an intent that was settled without a lasting effect, or perhaps without one.
type NotCompleted struct {
	IntentID int64
	Result
}

func (n *NotCompleted) Error() string {
	return "producer: intent " + strconv.FormatInt(n.IntentID, 10) + " is " + n.Status
}
func (n *NotCompleted) Is(target error) bool { return target == unfinished[n.Status] }

// The sentences for a model. The Python and TypeScript clients have the same: see clients/vectors.json.
var sentences = map[string]string{
	"recorded":            "It is recorded. It will be carried out, or its failure reported. Do not ask for it again.",
	"pending":             "It is recorded and not done yet. It will be carried out, or its failure reported. Do not ask for it again.",
	"completed":           "It is done.",
	"failed":              "It failed and was not done. Do not ask for it again. Tell the user.",
	"unknown":             "It is not known whether it was done. A person is finding out. Do not ask for it again.",
	"cancelled":           "It was cancelled before anything was done. Do not ask for it again.",
	"compensated":         "It was done, and then undone. Do not ask for it again.",
	"compensation_failed": "It was done. Undoing it failed, and a person has to undo it. Do not ask for it again.",
	"key_taken":           "This step was already asked for with other values. The first request stands. Do not ask for it again.",
	"run_closed":          "This run is closed. Nothing more of it will be done. Stop.",
	"invalid":             "It was not recorded, because the request is malformed. Tell the user.",
	"unknown_tool":        "It was not recorded, because there is no such tool. Tell the user.",
	"other_tenant":        "It was not recorded, because this run belongs to another tenant. Stop.",
	"limit_reached":       "It was not recorded, because a limit is reached. Stop for now. The same request can be made later.",
}

// ForModel returns a sentence for the model about an error of this package, without names, ids or payload. It
// returns "" for other errors.
func ForModel(err error) string {
	var settled *NotCompleted
	if errors.As(err, &settled) {
		return sentences[settled.Status]
	}
	for known, name := range map[error]string{
		ErrPending: "pending", ErrKeyTaken: "key_taken", ErrRunClosed: "run_closed", ErrInvalid: "invalid",
		ErrUnknownTool: "unknown_tool", ErrOtherTenant: "other_tenant", ErrLimitReached: "limit_reached",
	} {
		if errors.Is(err, known) {
			return sentences[name]
		}
	}
	return ""
}
