package protocol

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
)

// Result is the peer's report on a request.
type Result struct {
	ID           string            `json:"id"`
	Outcome      dispatch.Outcome  `json:"outcome"`
	Final        bool              `json:"final,omitempty"`
	HTTPStatus   int               `json:"http_status,omitempty"`
	ErrorClass   string            `json:"error_class,omitempty"`
	RetryAfterMS float64           `json:"retry_after_ms,omitempty"`
	Replayed     bool              `json:"replayed,omitempty"`
	ProviderRef  string            `json:"provider_ref,omitempty"`
	Response     json.RawMessage   `json:"response,omitempty"`
	Problem      *dispatch.Problem `json:"problem,omitempty"`
}

var (
	// ErrUnaddressed says that a text is no result of any request.
	ErrUnaddressed = errors.New("not a JSON object with an id")
	// ErrInvalid says that a result breaks the protocol, so nothing in it but
	// its id is believed.
	ErrInvalid = errors.New("not a valid result")
)

var (
	outcomes = []dispatch.Outcome{
		dispatch.Completed, dispatch.NotSent, dispatch.Throttled, dispatch.Rejected,
		dispatch.CredentialsRefused, dispatch.Forbidden, dispatch.Absent, dispatch.Ambiguous, dispatch.InFlight,
	}
	className = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
)

// ParseResult reads a result. With [ErrInvalid] it still returns the id.
func ParseResult(text []byte) (Result, error) {
	var result Result
	mistakes, err := readObject(text, result.fields())
	switch {
	case err != nil || result.ID == "" || slices.Contains(mistakes, "id"):
		return Result{}, ErrUnaddressed
	case len(mistakes) > 0 || !result.isValid():
		return Result{ID: result.ID}, ErrInvalid
	}
	return result, nil
}

// fields are where the values of a result go, by their names.
func (r *Result) fields() map[string]any {
	return map[string]any{
		"id": &r.ID, "outcome": &r.Outcome, "final": &r.Final, "http_status": &r.HTTPStatus, "error_class": &r.ErrorClass,
		"retry_after_ms": &r.RetryAfterMS, "replayed": &r.Replayed, "provider_ref": &r.ProviderRef,
		"response": &r.Response, "problem": &r.Problem,
	}
}

func (r Result) isValid() bool {
	return slices.Contains(outcomes, r.Outcome) &&
		(r.HTTPStatus == 0 || 100 <= r.HTTPStatus && r.HTTPStatus <= 599) &&
		(r.ErrorClass == "" || className.MatchString(r.ErrorClass)) &&
		r.RetryAfterMS >= 0
}

// Evidence is the result as the engine takes it, for a tool of the class.
func (r Result) Evidence(class dispatch.Class) dispatch.Result {
	return dispatch.Result{
		Outcome:     r.outcome(class),
		Final:       r.Final,
		HTTPStatus:  r.HTTPStatus,
		ErrorClass:  r.errorClass(),
		RetryAfter:  r.retryAfter(),
		Replayed:    r.Replayed,
		ProviderRef: evidence.Reference(r.ProviderRef),
		Response:    r.response(),
		Problem:     r.problem(),
	}
}

// outcome takes in_flight for doubt where a call must not be repeated: it
// would be sent again to a provider that does not know it by its key.
func (r Result) outcome(class dispatch.Class) dispatch.Outcome {
	if r.Outcome == dispatch.InFlight && class == dispatch.NonIdempotent {
		return dispatch.Ambiguous
	}
	return r.Outcome
}

func (r Result) errorClass() string {
	switch {
	case r.Outcome == dispatch.Completed:
		return ""
	case r.ErrorClass == "":
		return string(r.Outcome)
	}
	return r.ErrorClass
}

func (r Result) retryAfter() time.Duration {
	if r.RetryAfterMS >= float64(evidence.LongestWait.Milliseconds()) {
		return evidence.LongestWait
	}
	return time.Duration(r.RetryAfterMS * float64(time.Millisecond))
}

func (r Result) response() json.RawMessage {
	if string(r.Response) == "null" {
		return nil
	}
	return evidence.JSON(r.Response, "application/json")
}

func (r Result) problem() *dispatch.Problem {
	if r.Problem == nil || *r.Problem == (dispatch.Problem{}) {
		return nil
	}
	const longest = 2000 // characters
	return &dispatch.Problem{
		Type:   evidence.First(r.Problem.Type, longest),
		Title:  evidence.First(r.Problem.Title, longest),
		Detail: evidence.First(r.Problem.Detail, longest),
	}
}
