// Package exploretest is what tests say of a model.
package exploretest

import (
	"testing"

	"github.com/agentoutbox/drainer/model/explore"
)

// Holds fails the test if an order of events breaks a property.
func Holds[S comparable](t *testing.T, model explore.Model[S]) explore.Report[S] {
	t.Helper()
	report := explore.Explore(model)
	if report.Counterexample != nil {
		t.Error(report.Counterexample)
	}
	return report
}

// Breaks fails the test unless this property is the first to break. It logs how.
func Breaks[S comparable](t *testing.T, model explore.Model[S], without, property string) {
	t.Helper()
	report := explore.Explore(model)
	if report.Counterexample == nil {
		t.Fatalf("nothing breaks in %d states", report.States)
	}
	t.Logf("without %s, %s", without, report.Counterexample)
	if got := report.Counterexample.Property; got != property {
		t.Errorf("it breaks %q, want %q", got, property)
	}
}
