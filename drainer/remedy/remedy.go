// Package remedy lists the errors that a user can meet, with their meanings and remedies. Commands
// print the remedy with the error, and docs/errors.md is generated from this package.
package remedy

import (
	"fmt"
	"strings"
)

// Error is one error, or several errors with the same remedy.
type Error struct {
	// Names are the names that users see, separated by spaces. A star at the end of a name
	// stands for any ending.
	Names string
	Means string
	Do    string
}

// OfAttempt returns the remedy for the error class of an attempt, or of a step that could not be undone. It
// reports false for a class that comes from a provider's rule, an adapter's program or a broker.
func OfAttempt(class string) (Error, bool) {
	if found, known := find(Attempts, class); known {
		return found, true
	}
	return find(Undos, class)
}

// OfEnqueue returns the remedy for the SQLSTATE of a refused enqueue.
func OfEnqueue(state string) (Error, bool) { return find(Enqueue, state) }

// find prefers a whole name to a name with a star, and of several with a star the longest.
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
	{"OB003", "a part is empty or over 255 bytes, or `step_id` reserved; no payload, or over 1 MiB; over 64 KiB of headers; a `not_before` that never comes; nothing was written before it, and `require_state` is `error`", "correct the program; store large data elsewhere, and enqueue its address"},
	{"OB004", "its provider's daemons serve no such tool; the hint has the nearest name", "correct the name, or configure the tool"},
	{"OB005", "the run is another tenant's, or the login has the roles of two tenants", "begin run ids with the tenant's name; grant a login the role of one tenant"},
	{"OB006", "the tenant is at a limit; the message has the figure, the hint how long to wait", "wait, and run the transaction again, or raise the limit in `outbox.tenant`"},
	{"22* 54*", "`jsonb` cannot hold it: a NUL, half a surrogate pair, a number of more than 131,072 digits, endless nesting", "correct the program"},
	{"40001", "a twin of a plain `INSERT` committed at the same moment; the tenant was deleted meanwhile; or, at REPEATABLE READ, its run was pruned", "run the transaction again"},
	{"42501", "the login lacks the role `outbox_agent`", "`GRANT outbox_agent TO …`"},
}

// Exit is a code with which commands end.
type Exit struct {
	Code            int
	Word, Means, Do string
}

// Exits lists the exit codes in their order, from 0 on.
var Exits = []Exit{
	{0, "ok", "done", ""},
	{1, "failed", "the command's last line says why", "what that line says"},
	{2, "usage", "the command line is wrong, or names no configuration or database", "the message names the flag; see `--help`"},
	{3, "config invalid", "one line for each mistake of the file", "correct the lines; `drainer config validate` checks them"},
	{4, "database unreachable", "no connection to Postgres", "`drainer doctor` says whether DNS, TCP, TLS or the login fails"},
	{5, "schema behind", "the schema is older than this program", "`drainer migrate up` as the schema's owner"},
}

// ExitCodes returns a sentence with all exit codes, wrapped at 80 columns.
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

// Undos lists the reasons why a completed step is not undone. The reason is the detail of its
// incident.
var Undos = []Error{
	{"no_reversal", "its tool says neither `compensate_with` nor `compensation: none`", "undo it by hand, or configure it, then `sagas retry`"},
	{"reversal_window_expired", "it is older than the tool's `reversal_window`", "settle it with the provider, then `sagas retry --undone`"},
	{"undo_failed", "the undo was refused, or its outcome is unknown", "`sagas show`; then `sagas retry`, or undo it by hand"},
	{"undo_payload_failed undo_payload_no_object undo_payload_incomplete undo_payload_unstorable undo_payload_timeout", "`compensate_with.payload` fails, gives no object, one with a null, more than 1 MiB or what Postgres cannot store, or takes over a second", "correct it, then `sagas retry`"},
	{"late_effect", "it, or its undo, completed after the rollback or an undo by hand", "`sagas retry`; if the saga has not failed, settle it and acknowledge"},
	{"steps_forgotten", "steps were [pruned](retention.md#runs-in-use); the others are undone", "look at the providers, then `sagas resolve`"},
}

// Attempts lists the error classes of attempts, by their source.
var Attempts = []Error{
	// drainer itself
	{"unrenderable_request", "the tool's expressions made no request of the payload; the problem says which", "correct the expression, then retry"},
	{"slow_expression", "an expression took over a second", "make it simpler; it is retried"},
	{"payload_schema", "the payload violates `payload_schema`; the detail names the places", "correct agent or schema"},
	{"unconfigured_tool unknown_operation", "no daemon, or no adapter, serves this operation", "correct the name, add the tool, or start its daemon"},
	{"lookup_unconfigured", "its tool has no lookup any more", "bring that back, or resolve it"},
	{"not_repeatable key_ttl_expired", "in doubt, and sending it again could act twice", "find out, then `intents resolve`"},
	{"misconfigured", "it waited for longer than `misconfigured.fail_after`", "correct credentials or configuration; then a new run, or retry where the run goes on"},
	{"panic", "a bug of the adapter; the log has its stack", "report it"},
	{"worker_lost", "the process died, or lost its lease", "nothing, unless often: look at memory limits"},
	{"run_compensating", "its run is rolled back", "see `sagas show`"},
	{"unstorable_response", "Postgres refused to store the answer", "read it at the provider"},
	// the network
	{"dial dns tls", "no connection: name, port or certificate are wrong, or nothing listens", "`drainer doctor` tests the way; it is retried"},
	{"egress_refused", "the rules of `egress` forbid the address", "`allow` it, if it is meant"},
	{"untrusted_socket", "another process could be at the end of the socket", "correct owner and mode of socket and folder"},
	{"timeout", "the time was over", "raise `timeout` if the provider is slow by nature"},
	{"cancelled", "drainer was stopping", "nothing"},
	{"reset disconnected session session_closed", "the connection was cut", "nothing, unless often: look at proxies between"},
	{"protocol malformed_body", "the answer is not of the adapter's protocol", "check the address, or what the program writes"},
	{"body_too_large line_too_long", "the answer is longer than is read", "raise `max_response_body` or `max_message`"},
	// http, webhook
	{"http_401 auth authorization not_authed sasl_authentication_failed smtp_530", "the credentials are refused: rows wait, and fail after `misconfigured.fail_after`", "bring the right secret; a reload tries it at once"},
	{"http_403 missing_scope access_refused topic_authorization_failed cluster_authorization_failed", "the credentials lack a permission: rows wait, too", "grant it; if the intent is meant, say so by a rule"},
	{"http_301 http_302 http_303", "the provider may have acted, and leads elsewhere: in doubt", "correct `base_url` and `path`, or say by a rule what it means"},
	{"http_404 http_405 redirect", "the provider has no such address, or moved it", "correct `base_url` and `path`"},
	{"http_408 http_5* not_ok internal_error rpc_error", "the provider failed at work: in doubt", "nothing, unless it lasts"},
	{"http_409 http_425 key_in_flight duplicate_in_process", "it works on an earlier attempt, or names a conflict", "nothing; if rejected, read the response"},
	{"http_429 http_503 http_529 rate_limited", "overloaded, or over its limit: no effect", "lower `rate_limit` if it lasts"},
	{"http_4* smtp_5*", "refused for good; problem and response say why", "correct what they name; then a new run, or retry where the run goes on"},
	{"http_*", "an unexpected answer", "check the address"},
	{"key_mismatch payload_mismatch", "the provider holds another payload under this key", "find out which counts"},
	{"rule_failed rule_refused no_reference", "a rule fails, or claims what the class does not allow; a lookup found no `ref`", "correct `rules` and `ref`"},
	// mcp
	{"child_start child_backoff child_gone", "the program does not start, or ended", "start its command by hand; the problem has the last line of its stderr"},
	{"unknown_tool", "the server does not list the tool", "correct `name`, or deploy the server"},
	{"invalid_params method_not_found invalid_request parse_error", "the server does not take this call", "correct `arguments`"},
	{"capability_required elicitation_required input_required", "the tool wants a person, or a missing capability", "use another tool"},
	{"header_mismatch version_unsupported session_expired", "the session is over", "nothing: another is opened"},
	{"tool_error", "the tool says `isError`; read the response", "say `is_error: rejected` if that proves no effect"},
	// exec, sidecar
	{"start_timeout invalid_hello protocol_version", "the program said no hello; the problem has its line", "write only the protocol to stdout"},
	{"class_not_promised", "the program promises less than the configured class", "configure that class, or correct its hello"},
	{"child_down child_died", "the program ended; the problem has its exit status and last words", "correct it; `killed` is often for want of memory"},
	{"child_hung child_stalled", "the program was silent or read nothing, and was replaced", "look for what it waits for"},
	{"invalid_result", "an answer outside the protocol", "correct the program"},
	// brokers
	{"no_leader leader_not_available unknown_topic_or_partition no_responders no_exchange unroutable stream_not_found jetstream_not_enabled jetstream_unavailable", "topic, stream, exchange or queue is missing, or has no leader", "create it"},
	{"invalid_topic_exception", "the broker takes no topic of this name", "correct `topic`"},
	{"not_enough_replicas corrupt_message throttling_quota_exceeded too_many_requests too_many_unacknowledged channels_exhausted blocked stream_full account_resources_exceeded insufficient_*", "the broker takes nothing for now", "make room, or raise limits"},
	{"not_enough_replicas_after_append request_timed_out nacked connection_forced", "the broker may have it: in doubt", "nothing"},
	{"message_too_large record_list_too_large content_too_large headers_too_large headers_not_supported invalid_record invalid_timestamp policy_violation precondition_failed", "the broker refuses the message for good", "make it smaller, or change topic or queue"},
	{"another_stream stream_sealed wrong_last_sequence last_sequence_not_ready subject", "subject or stream are wrong, closed or elsewhere", "correct `stream` and `subject`"},
	{"duplicate_window_too_short stream_unreadable", "the stream forgets keys before their `ttl`, or cannot be read", "lengthen its duplicate window, or shorten `ttl`"},
	{"permission_violation", "NATS denies the subject: in doubt, or unsent", "grant it"},
	{"unknown_error_code jetstream_* amqp_*", "the broker's own code", "look it up in its manual"},
	// smtp
	{"no_starttls", "the server offers no TLS", "correct the port, or `security`"},
	{"smtp_4*", "the server takes it another time", "nothing"},
	{"invalid_address invalid_header no_recipient recipient_not_allowed", "the payload makes no mail, or one to the wrong people", "correct agent, template or `allow_recipients`"},
	// postgres, log
	{"sqlstate_*", "Postgres' own code", "22, 23: the payload; 42: table, function or privilege; others pass"},
	{"function_*", "the recipient's function said so", "read its response"},
	{"row_of_another_key", "the inbox has this four-tuple under another key", "give each outbox its own inbox; after `--new-key`, resolve it as completed"},
	{"row_missing rolled_back", "the row or the commit was taken away", "look at triggers of the recipient's table"},
	{"open write sync malformed_payload", "the `log` adapter cannot write its file, or the payload is no JSON", "check path, permissions and space"},
}
