package pages_test

import (
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/compensations/pages"
)

func TestAReloadTellsOtherChannels(t *testing.T) {
	t.Parallel()
	d, before, after := newDesk(t), newReceiver(t), newReceiver(t)
	pager := d.work(quick(channel("first", pages.NewSlack(before.server.URL))))
	d.incident(pages.OutcomeUnknown)
	before.next()

	pager.Use([]pages.Channel{channel("second", pages.NewSlack(after.server.URL))}, []string{"sim"})
	for _, outcome := range []string{"delivered", "refused", "unreachable"} {
		if _, counted := d.value("drainer_pages_total", map[string]string{"channel": "second", "outcome": outcome}); !counted {
			t.Errorf("what is %s of the new channel is not counted from 0", outcome)
		}
	}
	after.next() // of the incident that it has not heard of
	d.incident(pages.CompensationFailed)
	if m := after.next(); !strings.Contains(m.body, "compensation_failed") {
		t.Errorf("the new channel got %s", m.body)
	}
	before.assertSilent()
}
