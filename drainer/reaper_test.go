package drainer

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestADeadWorkersRowIsLeftToWhoeverKnowsItsTool(t *testing.T) {
	t.Parallel()
	s := &session{upstreams: map[string]*upstream{"sim": newUpstream(Provider{
		Name: "sim", Tools: map[string]dispatch.Policy{"act": {Class: dispatch.NaturallyIdempotent, MaxAttempts: 3}},
	})}}
	for name, test := range map[string]struct {
		tool, via string
		claimed   time.Duration // ago
		status    dispatch.Status
	}{
		"a tool of ours":                            {"sim/act", "", 0, dispatch.StatusPending},
		"a tool of ours that another knows":         {"sim/other", "", time.Hour, ""},
		"a provider of another":                     {"else/act", "", time.Hour, ""},
		"our fallback":                              {"else/act", "sim", 0, dispatch.StatusPending},
		"a fallback that another may know":          {"sim/act", "backup", forgottenAfter - time.Minute, ""},
		"a fallback that nobody seems to know":      {"sim/act", "backup", forgottenAfter + time.Minute, dispatch.StatusUnknown},
		"a fallback of another's that nobody knows": {"else/act", "backup", time.Hour, ""},
	} {
		row := &Row{Via: test.via, ClaimedAt: time.Now().Add(-test.claimed), Tuple: dispatch.Tuple{ToolName: test.tool}}
		got, judged := s.judgeLost(row)
		if judged != (test.status != "") || got.Decision.Status != test.status {
			t.Errorf("%s: judged %v as %q, want %q", name, judged, got.Decision.Status, test.status)
		}
	}
}
