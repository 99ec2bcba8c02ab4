package mcp

import (
	"context"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch"
)

// verdict is what an answer proves.
type verdict struct {
	outcome dispatch.Outcome
	final   bool // another attempt would bring the same answer
	class   string
}

func doubt(class string) verdict { return verdict{outcome: dispatch.Ambiguous, class: class} }

// verdict asks whoever knows more first: HTTP where it says that the answer
// is not the server's last word, the operator's rules, then the protocol.
func (t *tool) verdict(ctx context.Context, e evidence, a *answer) verdict {
	if e.status > 299 {
		if v, known := byStatus(e, a); known {
			return v
		}
	}
	if v, known := t.rules.verdict(ctx, a); known {
		return v
	}
	v := t.byProtocol(a)
	if e.status > 299 && a.isFault && v.outcome == dispatch.Ambiguous && a.code != codeInternalError {
		v = verdict{outcome: dispatch.Rejected, class: a.class()} // a 4xx is a refusal, whatever its code
	}
	return v
}

// byProtocol says what the answer means by the book.
func (t *tool) byProtocol(a *answer) verdict {
	switch {
	case a.isFault:
		return byCode(a)
	case a.wantsInput:
		v := doubt(a.class())
		v.final = a.wants > 0 // wanting none is how a server says that it is busy
		return v
	case a.isError:
		return verdict{outcome: t.isError, class: a.class()}
	}
	return verdict{outcome: dispatch.Completed}
}

func byCode(a *answer) verdict {
	switch a.code {
	case jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidRequest, jsonrpc.CodeParseError,
		codeCapabilityRequired, codeElicitationRequired:
		return verdict{outcome: dispatch.Rejected, class: a.class()}
	case codeHeaderMismatch, codeVersionUnsupported:
		return verdict{outcome: dispatch.Throttled, class: a.class()} // what a new session knows better
	}
	return doubt(a.class())
}

// byStatus reads a response that is no success. It leaves a refusal that
// carries a fault to those who know faults. a may be nil.
func byStatus(e evidence, a *answer) (v verdict, known bool) {
	class := "http_" + strconv.Itoa(e.status)
	switch {
	case e.status == 425:
		return verdict{outcome: dispatch.InFlight, class: class}, true
	case e.status == 429, e.status == 503, e.status == 529:
		return verdict{outcome: dispatch.Throttled, class: class}, true
	case e.status == 408, e.status >= 500:
		return doubt(class), true
	case e.sessionRefused(a):
		return verdict{outcome: dispatch.Throttled, class: "session_expired"}, true
	case a == nil:
		return verdict{outcome: dispatch.Rejected, class: class}, true
	}
	return verdict{}, false
}

// endsSession reports that the next call needs another session. A child has
// only one.
func (e evidence) endsSession() bool {
	switch {
	case e.status == 0:
		return false
	case e.answer == nil:
		return e.sessionRefused(nil)
	}
	a, err := understand(e.answer)
	return err == nil && (a.code == codeHeaderMismatch || a.code == codeVersionUnsupported || e.sessionRefused(a))
}

// sessionRefused reports that the server no longer knows the session, and so
// has looked no further. The protocol wants a 404 for that; older servers
// answer 400 to whatever they cannot place. A result is none: whatever the
// status that a server or a gateway puts on it, the tool has run.
func (e evidence) sessionRefused(a *answer) bool {
	switch {
	case !e.inSession || (e.status != 404 && e.status != 400):
		return false
	case a == nil:
		return true
	case !a.isFault:
		return false
	case e.status == 404:
		return a.code != jsonrpc.CodeMethodNotFound
	}
	return byCode(a).outcome == dispatch.Ambiguous && a.code != codeInternalError
}
