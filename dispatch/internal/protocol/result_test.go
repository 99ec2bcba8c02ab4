package protocol_test

import (
	"errors"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// A result that contradicts itself must not settle anything, least of all
// somebody else's request.
func TestAResultThatSaysTwoThingsIsNotBelieved(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]error{
		`{"id":"1","outcome":"ambiguous","outcome":"completed"}`:                        protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","outcome":"completed"}`:                        protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","outcome":null}`:                               protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","response":1,"response":2}`:                    protocol.ErrInvalid,
		`{"id":"1","id":"2","outcome":"completed"}`:                                     protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed","id":7}`:                                       protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed"}{"id":"2","outcome":"completed"}`:              protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed"`:                                               protocol.ErrUnaddressed,
		`{"id":"1","outcome":"completed",}`:                                             protocol.ErrUnaddressed,
		`{"id":"1" "outcome":"completed"}`:                                              protocol.ErrUnaddressed,
		`{"id":"1","outcome":5,"http_status":200}`:                                      protocol.ErrInvalid,
		`{"ID":"1","outcome":"completed"}`:                                              protocol.ErrUnaddressed,
		`{"id":"1","Outcome":"completed"}`:                                              protocol.ErrInvalid,
		`{"id":"1","outcome":"completed","extra":1,"extra":2,"response":{"a":1,"a":2}}`: nil,
	} {
		if _, err := protocol.ParseResult([]byte(text)); !errors.Is(err, want) || err == nil != (want == nil) {
			t.Errorf("%s is read with %v, want %v", text, err, want)
		}
	}
}

func TestAFieldOfAnotherSpellingIsNoneOfTheProtocol(t *testing.T) {
	t.Parallel()
	text := `{"id":"1","outcome":"ambiguous","ID":"2","OUTCOME":"completed","Final":true,"Retry_After_MS":5}`
	result, err := protocol.ParseResult([]byte(text))
	if err != nil || result.ID != "1" || result.Outcome != dispatch.Ambiguous || result.Final || result.RetryAfterMS != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}
