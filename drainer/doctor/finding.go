package doctor

import "fmt"

// Verdict is what a check makes of what it saw.
type Verdict string

// The verdicts. A warning can wait until the morning; a problem cannot.
const (
	OK         Verdict = "ok"
	Warning    Verdict = "warning"
	Problem    Verdict = "problem"
	NotChecked Verdict = "not_checked"
)

// Finding is one thing that was looked at.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Seen    string  `json:"seen"`           // or why it was not checked
	Cure    string  `json:"cure,omitempty"` // what to do or to type
}

// Count says how many findings have a verdict.
func Count(findings []Finding, verdict Verdict) (n int) {
	for _, finding := range findings {
		if finding.Verdict == verdict {
			n++
		}
	}
	return n
}

func ok(format string, args ...any) Finding {
	return Finding{Verdict: OK, Seen: fmt.Sprintf(format, args...)}
}

func warning(cure, format string, args ...any) Finding {
	return Finding{Verdict: Warning, Seen: fmt.Sprintf(format, args...), Cure: cure}
}

func problem(cure, format string, args ...any) Finding {
	return Finding{Verdict: Problem, Seen: fmt.Sprintf(format, args...), Cure: cure}
}

func notChecked(cure, format string, args ...any) Finding {
	return Finding{Verdict: NotChecked, Seen: fmt.Sprintf(format, args...), Cure: cure}
}
