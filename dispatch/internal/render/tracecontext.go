package render

import (
	"maps"
	"slices"
	"strings"
)

// TraceContext takes the W3C trace headers (https://www.w3.org/TR/trace-context,
// https://www.w3.org/TR/baggage), and nothing else, from what the agent left
// with the intent. Names are in lower case, and of several spellings the
// standard's own counts, on every attempt alike; values hold no control characters.
func TraceContext(from map[string]string) map[string]string {
	if len(from) == 0 { // sorting nothing takes longer than that
		return nil
	}
	kept := map[string]string{}
	for _, written := range slices.Sorted(maps.Keys(from)) { // in which lower case is the last
		switch name := strings.ToLower(written); name {
		case "traceparent", "tracestate", "baggage":
			if value := from[written]; !strings.ContainsFunc(value, isControl) {
				kept[name] = value
			}
		}
	}
	return kept
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
