package postgres

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

// answer is what a function returns. Nothing in it is guessed: without a
// known outcome, or with a field of another name, it is no answer.
type answer struct {
	Outcome  dispatch.Outcome `json:"outcome"`
	Ref      any              `json:"ref"` // text or a number
	Response json.RawMessage  `json:"response"`
	Replayed bool             `json:"replayed"`
}

// parseAnswer returns the zero answer for what is none.
func parseAnswer(text *string) answer {
	if text == nil {
		return answer{}
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(*text)))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	var a answer
	if err := decoder.Decode(&a); err != nil {
		return answer{}
	}
	if _, err := decoder.Token(); err != io.EOF {
		return answer{}
	}
	return a
}

// judge believes an outcome that the tool's class allows. What is no answer
// is rolled back and counts as a recipient that is not ready: its function is
// what has to be mended, and the intent is good.
func (a answer) judge(class dispatch.Class) dispatch.Result {
	reference, known := a.reference()
	if !a.isAllowed(class) || !known {
		return dispatch.Result{Outcome: dispatch.Throttled, ErrorClass: "protocol"}
	}
	result := dispatch.Result{Outcome: a.Outcome, Response: storable.JSON(a.Response, "application/json")}
	if a.Outcome == dispatch.Completed {
		result.ProviderRef = reference
		result.Replayed = a.Replayed
	} else {
		result.ErrorClass = "function_" + string(a.Outcome)
		result.Healthy = true // it was well enough to say so
	}
	return result
}

func (a answer) isAllowed(class dispatch.Class) bool {
	switch a.Outcome {
	case dispatch.Completed, dispatch.Rejected, dispatch.Throttled:
		return true
	case dispatch.InFlight:
		return class != dispatch.NonIdempotent // it would be called again
	case dispatch.Absent:
		return class == dispatch.ReadOnly
	}
	return false
}

func (a answer) reference() (string, bool) {
	if a.Ref == nil {
		return "", true
	}
	text, err := render.Scalar(a.Ref)
	return storable.Reference(text), err == nil
}
