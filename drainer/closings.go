package drainer

import "sync/atomic"

// closings are the agent runs that were closed, by a saga or an operator,
// after rows of theirs may have been claimed here. The zero value knows none.
type closings struct {
	runs atomic.Pointer[map[string]struct{}]
}

func (c *closings) learn(runs []string) {
	closed := make(map[string]struct{}, len(runs))
	for _, run := range runs {
		closed[run] = struct{}{}
	}
	c.runs.Store(&closed)
}

// bars reports whether a claimed row must not be sent any more. Undos and
// questions still are: they end what the run began.
func (c *closings) bars(row *Row) bool {
	closed := c.runs.Load()
	if closed == nil || row.Undoes != nil || row.Lookup {
		return false
	}
	_, is := (*closed)[row.Tuple.AgentRunID]
	return is
}
