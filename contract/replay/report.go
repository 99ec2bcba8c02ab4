package replay

import (
	"encoding/json"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
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
type Check struct {
	Name     string  `json:"name"`
	Verdict  Verdict `json:"verdict"`
	Seen     string  `json:"seen"`
	Expected string  `json:"expected"`
	Advice   string  `json:"advice,omitempty"`
}

// Verdict says what a check found.
type Verdict string

const (
	OK        Verdict = "ok"
	Warning   Verdict = "warning"     // not as it should be, but no effect is at risk
	Failed    Verdict = "failed"      // the provider does not do what the tool declares
	Skipped   Verdict = "not checked" // nothing was asked about it
	NoVerdict Verdict = "no verdict"  // the provider could not be asked
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
	r := Report{Tool: subject.Tool, Class: subject.Class, Passed: true, Checks: seen.judge(subject.Class), Calls: append(seen.alone(), seen.atOnce...)}
	for _, check := range r.Checks {
		r.Passed = r.Passed && check.Verdict != Failed && check.Verdict != NoVerdict
	}
	return r
}

// Unavailable reports that the provider could not be asked, so that nothing
// is known of what it promises.
func (r Report) Unavailable() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Verdict == NoVerdict })
}
