package operator

// Meanwhile is an action between whose decision and execution something
// happens.
type Meanwhile struct {
	Action
	Do func()
}

func (m Meanwhile) judge(s standing) (change, refusal) {
	m.Do()
	return m.Action.judge(s)
}
