package http

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
)

func problemAnswer(body string) *answer {
	return &answer{status: 400, header: http.Header{"Content-Type": {"application/problem+json; charset=utf-8"}}, body: []byte(body)}
}

func TestProblemDetailsAreKept(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 2000)
	for name, test := range map[string]struct {
		body string
		want *dispatch.Problem
		wait time.Duration
	}{
		"whole":               {`{"type":"https://e.com/p","title":"T","status":400,"detail":"D","instance":"/i"}`, &dispatch.Problem{Type: "https://e.com/p", Title: "T", Detail: "D"}, 0},
		"partial":             {`{"detail":"D"}`, &dispatch.Problem{Detail: "D"}, 0},
		"wrong types":         {`{"type":1,"title":["T"],"detail":{"a":1}}`, nil, 0},
		"one wrong type":      {`{"type":null,"title":true,"detail":"D"}`, &dispatch.Problem{Detail: "D"}, 0},
		"other capitals":      {`{"Title":"T"}`, nil, 0},
		"NUL":                 {`{"title":"a\u0000b"}`, &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"lone surrogate":      {`{"title":"a\ud800b"}`, &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"bad UTF-8":           {"{\"title\":\"a\xffb\"}", &dispatch.Problem{Title: "a\ufffdb"}, 0},
		"huge":                {`{"type":"` + long + `","title":"` + long + `","detail":"` + long + `"}`, &dispatch.Problem{Type: long[:2*255], Title: long[:2*255], Detail: long[:2*1024]}, 0},
		"array":               {`[{"title":"T"}]`, nil, 0},
		"text":                {`"T"`, nil, 0},
		"null":                {`null`, nil, 0},
		"empty":               {``, nil, 0},
		"cut short":           {`{"title":"T"`, nil, 0},
		"two values":          {`{"title":"T"}{}`, nil, 0},
		"deep":                {`{"title":"T","x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, nil, 0},
		"retry_after":         {`{"title":"T","retry_after":30}`, &dispatch.Problem{Title: "T"}, 30 * time.Second},
		"retry_after, half":   {`{"retry_after":0.5}`, nil, 500 * time.Millisecond},
		"retry_after, past":   {`{"retry_after":-5}`, nil, 0},
		"retry_after, huge":   {`{"retry_after":1e300}`, nil, retryafter.Longest},
		"retry_after, huger":  {`{"retry_after":1e999}`, nil, retryafter.Longest},
		"retry_after, quoted": {`{"retry_after":"30"}`, nil, 0},
	} {
		details := problemDetails(problemAnswer(test.body))
		if got := details.problem(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %.200v, want %.200v", name, got, test.want)
		}
		if got := details.retryAfter(); got != test.wait {
			t.Errorf("%s: retry after %s, want %s", name, got, test.wait)
		}
	}
}

func TestOnlyProblemJSONIsReadAsAProblem(t *testing.T) {
	t.Parallel()
	for _, contentType := range []string{"", "application/json", "text/plain", "application/problem+xml", "application/problem+json; ="} {
		a := problemAnswer(`{"title":"T"}`)
		a.header.Set("Content-Type", contentType)
		if got := problemDetails(a).problem(); got != nil {
			t.Errorf("%q: %v", contentType, got)
		}
	}
}

func FuzzProblemDetailsAreBoundedText(f *testing.F) {
	for _, seed := range []string{
		`{"type":"t","title":"T","detail":"D","retry_after":3}`, `{"title":"\u0000\ud800"}`, "{\"title\":\"\xff\"}",
		`{"retry_after":-1e309}`, `{"retry_after":9223372036854775808}`, `{"retry_after":0.0000000001}`, `{"retry_after":9e99,"retry_after":"1"}`, `[]`, `{"title":{}}`, `{"title":"a","title":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		details := problemDetails(problemAnswer(string(body)))
		wait := details.retryAfter()
		var said map[string]any
		_ = json.Unmarshal(body, &said)
		seconds, _ := said["retry_after"].(float64)
		if wait < 0 || wait > retryafter.Longest || wait.Seconds() < min(seconds, retryafter.Longest.Seconds()) {
			t.Errorf("retry after %s", wait)
		}
		problem := details.problem()
		if problem == nil {
			return
		}
		if *problem == (dispatch.Problem{}) {
			t.Error("an empty problem is kept")
		}
		for _, kept := range []struct {
			text string
			most int
		}{{problem.Type, maxProblemLine}, {problem.Title, maxProblemLine}, {problem.Detail, maxProblemDetail}} {
			if !utf8.ValidString(kept.text) || strings.ContainsRune(kept.text, 0) || utf8.RuneCountInString(kept.text) > kept.most {
				t.Errorf("kept %q", kept.text)
			}
		}
		if _, err := json.Marshal(problem); err != nil {
			t.Error(err)
		}
	})
}
