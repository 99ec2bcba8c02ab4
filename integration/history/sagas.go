package history

// backToNothing holds of sagas that claim to be compensated. Others have told
// somebody of what is left.
func (c *checker) backToNothing() {
	for _, transition := range c.Transitions {
		if transition.Closed {
			c.violated(BackToNothing, "intent %d was claimed to be sent although its run had gone back", transition.IntentID)
		}
	}
	for run, state := range c.Sagas {
		if state == "compensated" {
			c.wentBack(run)
		}
	}
}

func (c *checker) wentBack(run string) {
	undos := c.undosOf(run)
	later := len(c.Effects) // the position of the undo of the step after
	for _, step := range c.byRun[run] {
		if step.Undoes != 0 || len(c.effects[step.Key]) == 0 || c.tools[step.Tool].Stays {
			continue
		}
		undo, undone := undos[step.ID]
		if !undone || len(c.effects[undo.Key]) == 0 {
			c.violated(BackToNothing, "intent %d had an effect that was not undone", step.ID)
			continue
		}
		position := c.effects[undo.Key][0]
		if position < c.effects[step.Key][0] {
			c.violated(BackToNothing, "intent %d was undone before it had its effect", step.ID)
		}
		if position > later {
			c.violated(BackToNothing, "intent %d was undone after one that came later", step.ID)
		}
		later = position
	}
}

func (c *checker) undosOf(run string) map[int64]Intent {
	undos := map[int64]Intent{}
	for _, intent := range c.byRun[run] {
		if intent.Undoes != 0 {
			undos[intent.Undoes] = intent
		}
	}
	return undos
}
