package operator

// Wait is an intent whose end a saga waits for.
type Wait struct {
	IntentID int64  `json:"intent_id"`
	Status   string `json:"status"`
	Human    bool   `json:"needs_human"` // nobody else can tell how it ended
}

// waitsFor follows the order in which a saga goes back: steps end first, then
// one undo at a time.
func waitsFor(state string, steps []SagaStep) []Wait {
	waits := []Wait{}
	if state != "begun" {
		return waits
	}
	for _, step := range steps {
		switch step.Status {
		case "pending", "in_progress", "unknown":
			waits = append(waits, step.wait())
		}
	}
	if len(waits) > 0 {
		return waits
	}
	for _, step := range steps {
		if step.Undo != nil && step.Undo.FinishedAt == nil {
			waits = append(waits, step.Undo.wait())
		}
	}
	return waits
}

func (i Intent) wait() Wait {
	return Wait{IntentID: i.IntentID, Status: i.Status, Human: i.Status == "unknown" && i.FinishedAt != nil}
}

// Standing lists the steps whose effects are there and not undone.
func (s *SagaStory) Standing() []int64 {
	standing := []int64{}
	for _, step := range s.Steps {
		if step.Status == "completed" {
			standing = append(standing, step.IntentID)
		}
	}
	return standing
}
