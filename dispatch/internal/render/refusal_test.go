package render

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestOnlyAPayloadThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	slow := fmt.Errorf("evaluating jq: %w", context.DeadlineExceeded)
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		want dispatch.Outcome
	}{
		"it does not fit":             {t.Context(), errors.New("jq gave null"), dispatch.Rejected},
		"the expression was too slow": {t.Context(), slow, dispatch.Throttled},
		"the dispatch is over":        {over, slow, dispatch.NotSent},
	} {
		if got := Refusal(test.ctx, test.err); got.Outcome != test.want || got.Overloaded() && test.want == dispatch.Throttled {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
