package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// toldRun has a step that was retried and applied, its undo, and a step that failed.
func toldRun() (story *operator.RunStory, now time.Time) {
	begin := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) *time.Time {
		t := begin.Add(time.Duration(seconds) * time.Second)
		return &t
	}
	undo := operator.Intent{IntentID: 3, ToolName: "payments/refund", CreatedAt: *at(14), FinishedAt: at(20)}
	return &operator.RunStory{
		Steps: []operator.SagaStep{
			{Intent: operator.Intent{IntentID: 1, ToolName: "payments/charge\x1b[2J", CreatedAt: begin, FinishedAt: at(20)}, Undo: &undo},
			{Intent: operator.Intent{IntentID: 2, ToolName: "shipping/" + strings.Repeat("courier", 8), CreatedAt: *at(4), FinishedAt: at(12)}},
		},
		Spans: []operator.Span{
			{IntentID: 1, Attempt: 1, StartedAt: at(1), FinishedAt: *at(3), NextAttemptAt: at(5)},
			{IntentID: 1, Attempt: 2, StartedAt: at(5), FinishedAt: *at(6), Status: "completed"},
			{IntentID: 1, Attempt: 3, FinishedAt: *at(20), Status: "compensated"},
			{IntentID: 2, Attempt: 1, StartedAt: at(8), FinishedAt: *at(12), Status: "failed"},
			{IntentID: 3, Attempt: 1, StartedAt: at(14), FinishedAt: *at(20), Status: "completed"},
		},
	}, begin.Add(time.Hour)
}

func TestATimelineIsDrawnIn80ColumnsAndWithoutColours(t *testing.T) {
	t.Parallel()
	story, now := toldRun()
	const want = `                            0                                                20s
1 payments/charge\x1b[2J    ··▒▒▒▒▒▒·····███···································|
2 shipping/couriercourier…            ··········xxxxxxxxxxxx
────────────────────────────────────────────────────────────────────────────────
3 payments/refund                                               ████████████████
█ applied  ▒ tried again  ? lookup  x failed  ! in doubt  | decided  · waiting
`
	if drawn := drawTimeline(screen{columns: 80, now: now}, story); drawn != want {
		t.Errorf("drawn:\n%s\nwant:\n%s", drawn, want)
	}
	for line := range strings.SplitSeq(want, "\n") {
		if displayWidth(line) > 80 {
			t.Errorf("%d columns: %q", displayWidth(line), line)
		}
	}
	if painted := drawTimeline(screen{columns: 80, now: now, colours: true}, story); !strings.Contains(painted, "\x1b[31mxxxxxxxxxxxx\x1b[0m") {
		t.Errorf("a failed attempt is not red:\n%q", painted)
	}
}
