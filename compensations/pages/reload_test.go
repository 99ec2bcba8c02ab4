package pages_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainertest"
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

func TestAPageUnderWayToAChannelThatIsGoneEnds(t *testing.T) {
	t.Parallel()
	d, down := newDesk(t), newReceiver(t)
	down.answer = func(_ int64, w http.ResponseWriter) bool { cut(w); return false }
	pager := d.work(quick(channel("gone", pages.NewSlack(down.server.URL))))
	d.incident(pages.OutcomeUnknown)
	drainertest.Eventually(t, "it is tried", func() bool { return down.tries.Load() > 0 })

	pager.Use(nil, []string{"sim"})
	d.looks() // which also waits for the page's job
	tried := down.tries.Load()
	d.looks()
	if again := down.tries.Load(); again != tried {
		t.Errorf("the channel that is gone was tried %d times more", again-tried)
	}
}
