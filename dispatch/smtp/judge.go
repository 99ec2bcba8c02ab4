package smtp

import (
	"context"
	"errors"
	"net/textproto"
	"regexp"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

var errAuthentication = errors.New("the server asks for more than a user and a password")

// unrendered is the result of a payload from which no mail could be made. A retry would fail in the same way, unless
// the time was too short.
func unrendered(ctx context.Context, err error) dispatch.Result {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return render.Refusal(ctx, err)
	}
	class := dispatch.Unrenderable
	switch {
	case errors.Is(err, errNotAllowed):
		class = "recipient_not_allowed"
	case errors.Is(err, errNobody):
		class = "no_recipient"
	case errors.Is(err, errAddress):
		class = "invalid_address"
	case errors.Is(err, errHeader):
		class = "invalid_header"
	}
	return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: class, Unsent: true, Problem: render.Problem(err)}
}

// notReady is the result if the server was not ready for a mail. Its reply is not stored, since the reply may
// contain the user's name. The server did not refuse the mail itself, so a later attempt may succeed.
func notReady(ctx context.Context, step string, err error) dispatch.Result {
	var reply *textproto.Error
	switch {
	case errors.As(err, &reply) && isTemporary(reply.Code):
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: replyClass(reply.Code)}
	case errors.Is(err, errNoSTARTTLS):
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "no_starttls"}
	case step == "auth" && (reply != nil || errors.Is(err, errAuthentication)):
		return dispatch.Result{Outcome: dispatch.CredentialsRefused, ErrorClass: "auth"}
	case reply != nil && reply.Code == authenticationRequired:
		return dispatch.Result{Outcome: dispatch.CredentialsRefused, ErrorClass: replyClass(reply.Code)}
	case reply != nil:
		return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: replyClass(reply.Code)}
	}
	class := evidence.Sent(ctx, err)
	if step == "tls" && class == "protocol" {
		class = "tls"
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: class}
}

// authenticationRequired is reply 530 (RFC 4954): the server accepts no mail without a login.
const authenticationRequired = 530

// notTaken is the result of a mail whose final dot was not sent.
func notTaken(ctx context.Context, err error) dispatch.Result {
	if result, refused := refusal(err); refused {
		return result
	}
	return dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: evidence.Sent(ctx, err)}
}

// inDoubt is the result of a mail whose final dot the server may have read.
func inDoubt(ctx context.Context, err error) dispatch.Result {
	if result, refused := refusal(err); refused {
		return result
	}
	return dispatch.Result{Outcome: dispatch.Ambiguous, ErrorClass: evidence.Sent(ctx, err)}
}

// refusal judges a reply (RFC 5321, 4.2.1): 4yz is temporary, 5yz is final. Any other reply is not a refusal.
func refusal(err error) (dispatch.Result, bool) {
	var reply *textproto.Error
	if !errors.As(err, &reply) || reply.Code < 400 || reply.Code > 599 {
		return dispatch.Result{}, false
	}
	result := dispatch.Result{
		Outcome:    dispatch.Rejected,
		ErrorClass: replyClass(reply.Code),
		Problem:    &dispatch.Problem{Title: strconv.Itoa(reply.Code), Detail: evidence.Text(reply.Msg)},
	}
	if reply.Code == authenticationRequired {
		result.Outcome = dispatch.CredentialsRefused
	}
	if isTemporary(reply.Code) {
		result.Outcome = dispatch.Throttled
		result.Healthy = isOfRecipient(reply.Code)
	}
	return result, true
}

// isOfRecipient distinguishes a mailbox that is busy or greylisted from a server that has no room or shuts down (RFC
// 5321, 4.2.3).
func isOfRecipient(code int) bool { return code == 450 || code == 451 }

func isTemporary(code int) bool { return code >= 400 && code <= 499 }

func replyClass(code int) string { return "smtp_" + strconv.Itoa(code) }

func taken(text string) dispatch.Result {
	result := dispatch.Result{Outcome: dispatch.Completed, Response: evidence.JSON([]byte(text), "text/plain")}
	if found := queueID.FindStringSubmatch(text); found != nil {
		result.ProviderRef = found[1]
	}
	return result
}

// queueID finds the queue id in the answers of Postfix, Sendmail and Exim.
var queueID = regexp.MustCompile(`(?:\bqueued as |\bid=)([A-Za-z0-9][A-Za-z0-9._-]*)`)
