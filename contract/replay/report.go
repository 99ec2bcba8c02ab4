package replay

import (
	"encoding/json"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
)

// Report is what was seen, held against what the tool declares.
type Report struct {
	Tool   string         `json:"tool"`
	Class  dispatch.Class `json:"class"`
	Passed bool           `json:"passed"` // the provider could be asked, and no check failed
	Checks []Check        `json:"checks"`
	Calls  []Call         `json:"calls"`
}

// Check is one question and its answer.
type Check = conformance.Check

// Verdict says what a check found.
type Verdict = conformance.Verdict

const (
	OK        = conformance.OK
	Warning   = conformance.Warning   // not as it should be, but no effect is at risk
	Failed    = conformance.Failed    // the provider does not do what the tool declares
	Skipped   = conformance.Skipped   // nothing was asked about it
	NoVerdict = conformance.NoVerdict // the provider could not be asked
)

// Call is one request and its answer, without the answer's body.
type Call struct {
	Step        string           `json:"step"`
	Outcome     dispatch.Outcome `json:"outcome"`
	HTTPStatus  int              `json:"http_status,omitempty"`
	Error       string           `json:"error,omitempty"`
	Replayed    bool             `json:"replayed"`
	ProviderRef string           `json:"provider_ref,omitempty"`

	body json.RawMessage
}

func report(subject Subject, seen evidence) Report {
	checks := seen.judge(subject.Class)
	return Report{
		Tool: subject.Tool, Class: subject.Class, Passed: conformance.Passed(checks),
		Checks: checks, Calls: append(seen.alone(), seen.atOnce...),
	}
}

// Unavailable reports that the provider could not be asked, so that nothing
// is known of what it promises.
func (r Report) Unavailable() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict == NoVerdict })
}
