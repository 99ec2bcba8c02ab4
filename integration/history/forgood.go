package history

// forGood follows each row through its transitions.
func (c *checker) forGood() {
	journeys := map[int64]*journey{}
	for _, transition := range c.Transitions {
		if transition.IntentID == 0 {
			continue
		}
		row, known := journeys[transition.IntentID]
		if !known {
			row = &journey{claimed: map[int]bool{}}
			journeys[transition.IntentID] = row
		}
		if wrong := row.follow(transition); wrong != "" {
			c.violated(ForGood, "intent %d %s", transition.IntentID, wrong)
		}
	}
	for intent, row := range journeys {
		if row.revived {
			c.violated(ForGood, "intent %d was settled and came back to be sent", intent)
		}
	}
}

// journey is where a row stands after some of its transitions.
type journey struct {
	settled bool
	revived bool         // it was settled and is queued or claimed again; an operator's word may follow
	claimed map[int]bool // the attempts that were
}

// follow returns what is wrong with the next transition, or nothing.
func (j *journey) follow(t Transition) string {
	switch {
	case t.Place == "intent" && t.Change == "UPDATE":
		return "was changed after its commit"
	case t.Place == "attempt" && t.Change != "INSERT":
		return "had its history changed"
	case t.Place == "attempt":
		return j.attempted(t)
	case t.Change != "INSERT":
		return ""
	case t.Place == "claim" && j.claimed[t.Attempt]:
		return "was claimed twice under one number"
	case t.Place == "claim" && j.settled:
		return "was settled and claimed to be sent again" // an operator's word comes before that, or too late
	case t.Place == "claim":
		j.claimed[t.Attempt] = true
	}
	if t.Place == "queue" || t.Place == "claim" {
		j.revived = j.revived || j.settled
	}
	return ""
}

// attempted allows three things after the end: an operator's word, what became
// of the undo, and a late proof that it did happen.
func (j *journey) attempted(t Transition) string {
	switch {
	case t.isOperators():
		j.revived = false
	case j.settled && t.Worker != "saga" && !t.Late:
		return "was settled twice, the second time as " + t.Status
	}
	j.settled = t.Settled
	return ""
}
