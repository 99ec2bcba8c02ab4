package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestOnlyAPayloadThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	slow := fmt.Errorf("evaluating jq: %w", context.DeadlineExceeded)
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		want dispatch.Outcome
	}{
		"it does not fit":             {t.Context(), errors.New("jq gave null"), dispatch.Rejected},
		"the expression was too slow": {t.Context(), slow, dispatch.Throttled},
		"the dispatch is over":        {over, slow, dispatch.NotSent},
		"it outlasted the dispatch":   {late, slow, dispatch.Throttled},
	} {
		if got := Refusal(test.ctx, test.err); got.Outcome != test.want || got.Overloaded() || !got.Unsent {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A doubled brace is one brace, everywhere. Text that is no placeholder stays as it is.
func FuzzATemplateKeepsItsText(f *testing.F) {
	for _, seed := range []string{
		"", "/v1/charges/{.payload.id}", "{{}}", "{", "}", "{}", "{{{.a}}}", `{"}"}`, `{"\(.a)"}/{{`, "{.a} {.b", "{{.a}", "é{.é}\x00", strings.Repeat("{", 50) + strings.Repeat("}", 50),
		"{.a | now}", `{{"a": {.b}}}`, "{#}\n}",
	} {
		f.Add(seed)
	}
	doubled := strings.NewReplacer("{", "{{", "}", "}}")
	f.Fuzz(func(t *testing.T, text string) {
		literal, err := ParseTemplate(doubled.Replace(text))
		if err != nil || literal.HasValue() {
			t.Fatalf("%q: %v, %v", text, literal, err)
		}
		if got, err := literal.Render(t.Context(), nil, AsIs); err != nil || got != text {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
		parsed, err := ParseTemplate(text)
		if err != nil {
			return
		}
		left := text
		for _, piece := range parsed {
			_, after, found := strings.Cut(left, doubled.Replace(piece.Literal))
			if !found {
				t.Fatalf("%q is read as %+v", text, parsed)
			}
			left = after
		}
		if !parsed.HasValue() && strings.NewReplacer("{{", "{", "}}", "}").Replace(text) != parsed[0].Literal {
			t.Errorf("%q is read as %+v", text, parsed)
		}
	})
}

// Of an agent's headers only the trace headers are sent. Each attempt sends the same ones, and each is a valid
// header of HTTP.
func FuzzOnlyTraceHeadersGoOn(f *testing.F) {
	for _, seed := range [][2]string{
		{"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{"TraceParent", "00-ab"},
		{"TRACESTATE", "a=b"},
		{"baggage", "a=\r\nCookie: x"},
		{"trace\u017ftate", "x"},
		{"authorization", "Bearer x"},
		{"", ""},
		{"traceparent\r\n", "x"},
		{"baggage", "\x7f"},
		{"baggage", "\xff\u0085\u2028"},
	} {
		f.Add(seed[0], seed[1], "traceparent", "other")
	}
	f.Fuzz(func(t *testing.T, name, value, another, other string) {
		left := map[string]string{name: value, another: other}
		kept := TraceContext(left)
		for range 4 {
			if again := TraceContext(maps.Clone(left)); !maps.Equal(again, kept) {
				t.Fatalf("%q is %q, and %q", left, kept, again)
			}
		}
		for name, value := range kept {
			if !slices.Contains([]string{"traceparent", "tracestate", "baggage"}, name) || !httpguts.ValidHeaderFieldValue(value) {
				t.Errorf("%q goes on", http.Header{name: {value}})
			}
		}
		if own, is := left["traceparent"]; is && !strings.ContainsFunc(own, isControl) && kept["traceparent"] != own {
			t.Errorf("of %q goes on %q", left, kept)
		}
	})
}
