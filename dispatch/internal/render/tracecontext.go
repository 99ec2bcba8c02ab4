package render

import "strings"

// TraceContext takes the W3C trace headers (https://www.w3.org/TR/trace-context,
// https://www.w3.org/TR/baggage), and nothing else, from what the agent left
// with the intent. Names are in lower case; values hold no control characters.
func TraceContext(from map[string]string) map[string]string {
	kept := map[string]string{}
	for name, value := range from {
		switch name := strings.ToLower(name); name {
		case "traceparent", "tracestate", "baggage":
			if !strings.ContainsFunc(value, isControl) {
				kept[name] = value
			}
		}
	}
	return kept
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }
