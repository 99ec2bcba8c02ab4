package config

import (
	"slices"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestOnlyAnEffectThatRepeatsNeedsSafeguards(t *testing.T) {
	t.Parallel()
	lookup := &dispatch.Lookup{Operation: "find"}
	undo := dispatch.Reversal{Tool: "p/undo", Window: time.Hour}
	for _, test := range []struct {
		policy dispatch.Policy
		want   []string
	}{
		{dispatch.Policy{Class: dispatch.ReadOnly}, nil},
		{dispatch.Policy{Class: dispatch.NaturallyIdempotent}, nil},
		{dispatch.Policy{Class: dispatch.KeyIdempotent}, nil},
		{dispatch.Policy{Class: dispatch.NonIdempotent}, []string{"lookup", "compensate_with", "reversal_window"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Reversal: undo}, []string{"lookup"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: dispatch.Reversal{Window: time.Hour}}, []string{"compensate_with"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: dispatch.Reversal{Tool: "p/undo"}}, []string{"reversal_window"}},
		{dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: lookup, Reversal: undo}, nil},
	} {
		if got := MissingSafeguards(test.policy); !slices.Equal(got, test.want) {
			t.Errorf("%+v lacks %v, want %v", test.policy, got, test.want)
		}
	}
}

func TestToolsHaveTheirFullNames(t *testing.T) {
	t.Parallel()
	loaded, err := loadText(t, complete)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, policy := range loaded.Tools() {
		names = append(names, name)
		if policy.Class == "" {
			t.Errorf("%s has no policy", name)
		}
	}
	want := []string{"stripe/create_charge", "stripe/find", "stripe/refund", "spare/create_charge", "spare/find", "spare/refund", "mail/mail"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}
