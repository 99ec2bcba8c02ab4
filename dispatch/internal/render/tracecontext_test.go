package render

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// Of what an agent left, only trace headers go on, on every attempt alike, and
// each can be a header of HTTP.
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
