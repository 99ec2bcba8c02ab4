package http

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

var keyShapes = map[string]*regexp.Regexp{
	"opaque": regexp.MustCompile(`^[a-z0-9_]+$`),
	"quoted": regexp.MustCompile(`^"[a-z0-9_]+"$`),
	"uuid":   regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`),
}

// Whatever a tuple holds, its key is a header's value of the length that the
// provider takes, unlike another tuple's, and the tuple's own header can be read.
func FuzzAKeyFitsItsPlace(f *testing.F) {
	for _, part := range []string{"run", "", "a,b", "%2C", "\r\nX-Evil: 1", "\x00", "é\u2028", "\xff", strings.Repeat("x", 300)} {
		for _, length := range []int{0, 24, 26, 36, 40, -1, 1 << 40} {
			f.Add(part, "other", length)
		}
	}
	f.Fuzz(func(t *testing.T, run, other string, maxLength int) {
		tuple := dispatch.Tuple{AgentRunID: run, StepID: "step", ToolName: "p/" + other, BusinessScope: run + other}
		another := tuple
		another.AgentRunID = other
		for name, shape := range keyShapes {
			format, err := keyFormat(name, maxLength)
			if err != nil {
				continue
			}
			key := format(tuple.IdempotencyKey())
			if !shape.MatchString(key) || maxLength > 0 && len(key) > maxLength {
				t.Errorf("%s, at most %d: %q", name, maxLength, key)
			}
			if (key == format(another.IdempotencyKey())) != (run == other) {
				t.Errorf("%s, at most %d: %q and %q have the key %q", name, maxLength, tuple, another, key)
			}
		}
		header := tupleOf(tuple)
		if !validHeaderValue(header) || !isASCII(header) {
			t.Errorf("%q is no header value", header)
		}
		parts := strings.Split(header, ",")
		for i, part := range parts {
			parts[i], _ = url.PathUnescape(part)
		}
		if want := []string{tuple.AgentRunID, tuple.StepID, tuple.ToolName, tuple.BusinessScope}; !slices.Equal(parts, want) {
			t.Errorf("%q is read as %q, want %q", header, parts, want)
		}
	})
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
