package conformance

import "slices"

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
	Failed    Verdict = "failed"      // what was promised does not hold
	Skipped   Verdict = "not checked" // nothing was asked about it
	NoVerdict Verdict = "no verdict"  // the other side could not be asked
)

// Passed reports whether everything that was asked could be asked, and held.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return c.Verdict == Failed || c.Verdict == NoVerdict })
}

// found is a check that passes by what was seen.
func found(name string, holds bool, seen, expected, advice string) Check {
	check := Check{Name: name, Verdict: OK, Seen: seen, Expected: expected}
	if !holds {
		check.Verdict, check.Advice = Failed, advice
	}
	return check
}

func skipped(name, expected, why string) Check {
	return Check{Name: name, Verdict: Skipped, Seen: "nothing", Expected: expected, Advice: why}
}
