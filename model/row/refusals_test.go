package row_test

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/row"
)

// assertRefusesTheRest tries what the model has no step for: it is tried once
// wherever the tables show the same.
func (i *intent) assertRefusesTheRest(s row.State) {
	i.T.Helper()
	shown := visibleOf(s)
	if i.tried[shown] {
		return
	}
	i.tried[shown] = true
	i.assertRefusesClaims(s)
	if s.Settled && s.Newest.Is() == dispatch.StatusCompleted {
		return // what an operator may correct depends on who completed it
	}
	for plan, action := range map[row.Plan]operator.Action{
		row.Retry:             operator.Retry{},
		row.RetryMayDuplicate: operator.Retry{MayDuplicate: true},
		row.Cancel:            operator.Cancel{},
		row.ResolveCompleted:  operator.Resolve{As: dispatch.StatusCompleted},
		row.ResolveFailed:     operator.Resolve{As: dispatch.StatusFailed},
	} {
		i.assertJudges(action, i.model.Allows(&s, plan))
	}
}

// assertRefusesClaims has workers claim what is not due, or is not theirs to
// claim any more.
func (i *intent) assertRefusesClaims(s row.State) {
	i.T.Helper()
	for w, worker := range s.Workers {
		if s.IsDue() && !worker.Buried {
			continue
		}
		if held := i.claim(w, 1); len(held) != 0 {
			i.T.Errorf("worker %d claims it", w+1)
		}
	}
}

func (i *intent) assertJudges(action operator.Action, want bool) {
	i.T.Helper()
	if allowed, refused := i.Allows(i.configured(action), i.id); allowed != want {
		i.T.Errorf("%T %+v is allowed: %t, want %t; %s", action, action, allowed, want, refused)
	}
}
