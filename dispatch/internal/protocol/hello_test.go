package protocol_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
)

func FuzzParseHello(f *testing.F) {
	for _, seed := range []string{
		`{"protocol":[1],"name":"x"}`, `{"protocol":[2,1],"name":"x","operations":{"open":"read_only"}}`, `{"protocol":[1.0],"name":"x"}`,
		`{"protocol":[1],"name":"x","operations":{"":"read_only"}}`, `{"protocol":[2],"name":"x"}`, `{"protocol":[9223372036854775808],"name":"x"}`,
		`{"Protocol":[1],"NAME":"x"}`, `{"protocol":[2],"protocol":[1],"name":"x"}`, `{"protocol":null,"name":"x"}`, `null`, "{",
	} {
		f.Add([]byte(seed))
	}
	schema := protocoltest.Published(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		hello, class := protocol.ParseHello(text)
		if !slices.Contains([]string{"", "invalid_hello", "protocol_version"}, class) || (class == "") != (hello.Name != "") {
			t.Fatalf("%+v, %q", hello, class)
		}
		if class == "" && !hugeExponent.Match(text) {
			schema.Check(t, "hello", text)
		}
		for _, configured := range dispatch.Classes() {
			if promised, known := hello.Operations["open"]; known && configured == dispatch.ReadOnly && promised != configured && hello.Refusal("open", configured) == "" {
				t.Errorf("%s passes for %s", promised, configured)
			}
		}
	})
}
