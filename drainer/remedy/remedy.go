// Package remedy lists the errors that a user can meet, what each means and what to do
// about it. Commands print it beside the error, and docs/errors.md is generated from it.
package remedy

import (
	"fmt"
	"strings"
)

// Error is one error, or several with the same cure.
type Error struct {
	// Names are as they are shown, separated by spaces. A star at the end stands for any
	// ending.
	Names string
	Means string
	Do    string
}

// OfAttempt finds the error class of an attempt, or of a step that could not be undone. It
// reports false for a word of a provider's rule, of an adapter's program or of a broker.
func OfAttempt(class string) (Error, bool) {
	if found, known := find(Attempts, class); known {
		return found, true
	}
	return find(Undos, class)
}

// OfEnqueue finds the SQLSTATE of a refused enqueue.
func OfEnqueue(state string) (Error, bool) { return find(Enqueue, state) }

// find prefers a whole name to the beginning of one, and a longer beginning to a shorter.
func find(errors []Error, name string) (best Error, found bool) {
	longest := -1
	for _, one := range errors {
		for _, known := range strings.Fields(one.Names) {
			beginning, isOpen := strings.CutSuffix(known, "*")
			switch {
			case known == name:
				return one, true
			case isOpen && strings.HasPrefix(name, beginning) && len(beginning) > longest:
				best, found, longest = one, true, len(beginning)
			}
		}
	}
	return best, found
}

// Enqueue has the SQLSTATEs with which the outbox refuses an intent. The transaction is
// aborted, and nothing is recorded.
var Enqueue = []Error{
	{"OB001", "the key holds another payload", "tell the model that its first request stands, and show it `outbox.status`; never invent a `step_id`"},
	{"OB002", "the run is, or was, compensated or cancelled", "stop the agent; a later attempt is a new run, with a new id"},
	{"OB003", "a part is empty or over 255 bytes, or `step_id` reserved; no payload, or over 1 MiB; over 64 KiB of headers; a `not_before` that never comes", "correct the program; store large data elsewhere, and enqueue its address"},
	{"OB004", "its provider's daemons serve no such tool; the hint has the nearest name", "correct the name, or configure the tool; names stay known while no daemon runs"},
	{"OB005", "the run is another tenant's, or the login has the roles of two tenants", "begin run ids with the tenant's name; grant a login the role of one tenant"},
	{"OB006", "the tenant is at a limit; the message has the figure, the hint how long to wait", "wait, and run the transaction again; the owner raises the limit in `outbox.tenant`"},
	{"22* 54*", "`jsonb` cannot hold it: a NUL, half a surrogate pair, a number of more than 131,072 digits, endless nesting", "correct the program"},
	{"40001", "plain `INSERT` only: a twin committed at the same moment", "run the transaction again"},
	{"42501", "the login lacks the role `outbox_agent`", "`GRANT outbox_agent TO …`"},
}

// Exit is a code with which every command ends.
type Exit struct {
	Code            int
	Word, Means, Do string
}

// Exits are in the order of their codes, which begin at 0.
var Exits = []Exit{
	{0, "ok", "done", ""},
	{1, "failed", "the command's last line says why", "what that line says"},
	{2, "usage", "the command line is wrong, or names no configuration or database", "the message names the flag; see `--help`"},
	{3, "config invalid", "one line for each mistake of the file", "correct the lines; `drainer config validate` checks them"},
	{4, "database unreachable", "no connection to Postgres", "`drainer doctor` says whether DNS, TCP, TLS or the login fails"},
	{5, "schema behind", "the schema is older than this program", "`drainer migrate up` as the schema's owner"},
}

// ExitCodes is a sentence with all of them, for a terminal of 80 columns.
func ExitCodes() string {
	text, column := "Exit codes:", len("Exit codes:")
	for i, exit := range Exits {
		end := ","
		if i == len(Exits)-1 {
			end = "."
		}
		next := fmt.Sprintf(" %d %s%s", exit.Code, exit.Word, end)
		if column += len(next); column > 80 {
			next, column = "\n"+next[1:], len(next)-1
		}
		text += next
	}
	return text
}

// Undos are the reasons for which a completed step is not undone: the detail of its
// incident.
var Undos = []Error{
	{"no_reversal", "its tool says neither `compensate_with` nor `compensation: none`", "undo it by hand, or configure it, then `sagas retry`"},
	{"reversal_window_expired", "it is older than the tool's `reversal_window`", "settle it with the provider, then `sagas resolve`"},
	{"undo_failed", "the undo was refused, or its outcome is not known", "`sagas show` has its attempts; then `sagas retry`, or undo it by hand"},
	{"undo_payload_failed undo_payload_no_object undo_payload_incomplete undo_payload_unstorable undo_payload_timeout", "`compensate_with.payload` fails, gives no object, one with a null, more than 1 MiB or what Postgres cannot store, or takes over a second", "correct the expression, and `sagas retry`"},
	{"steps_forgotten", "completed steps were [pruned](retention.md#runs-in-use); the others are undone", "look for them at the providers, then `sagas resolve`"},
}
