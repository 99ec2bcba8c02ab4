package drainer

import (
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestAQuestionThatNoToolAnswersIsAskedByRepeatingWhereThatIsSafe(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	row := &Row{Lookup: true, MaybeApplied: true, FirstAttemptAt: &sent, SinceFirstSend: time.Hour, ClaimedAt: time.Now()}
	for name, test := range map[string]struct {
		policy dispatch.Policy
		acts   bool
	}{
		"a lookup answers":                {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour, Lookup: &dispatch.Lookup{}}, false},
		"the key is still known":          {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: 24 * time.Hour}, true},
		"the key may be forgotten":        {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}, false},
		"repeating changes nothing":       {dispatch.Policy{Class: dispatch.NaturallyIdempotent}, true},
		"repeating repeats the effect":    {dispatch.Policy{Class: dispatch.NonIdempotent}, false},
		"nobody here knows what it would": {dispatch.Policy{}, false},
	} {
		if got := !answerable(row, test.policy).Lookup; got != test.acts {
			t.Errorf("%s: it acts %v, want %v", name, got, test.acts)
		}
	}
	if !row.Lookup {
		t.Error("the claimed row itself was changed")
	}
}

func TestAStepOfARunThatGoesBackIsNotRepeatedToFindOut(t *testing.T) {
	t.Parallel()
	policy, forward := dispatch.Policy{Class: dispatch.NaturallyIdempotent}, int64(1)
	for name, test := range map[string]struct {
		row  Row
		acts bool
	}{
		"a step":                {Row{Lookup: true, MaybeApplied: true, InSaga: true}, false},
		"the undo of a step":    {Row{Lookup: true, MaybeApplied: true, InSaga: true, Undoes: &forward}, true},
		"a step of another run": {Row{Lookup: true, MaybeApplied: true}, true},
		"what was no question":  {Row{MaybeApplied: true, InSaga: true, Undoes: &forward}, true},
	} {
		if got := !answerable(&test.row, policy).Lookup; got != test.acts {
			t.Errorf("%s: it acts %v, want %v", name, got, test.acts)
		}
	}
}

// A claim may have waited, and a tool may have become less safe than it was.
func TestAClaimedRowThatCouldDoHarmIsRefusedByName(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	doubtful := Row{MaybeApplied: true, FirstAttemptAt: &sent, SinceFirstSend: time.Hour, ClaimedAt: time.Now()}
	question := doubtful
	question.Lookup = true
	keyed := dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: time.Hour}
	for name, test := range map[string]struct {
		row    Row
		policy dispatch.Policy
		want   string
	}{
		"nothing was sent before":             {Row{}, dispatch.Policy{Class: dispatch.NonIdempotent}, ""},
		"repeating repeats the effect":        {doubtful, dispatch.Policy{Class: dispatch.NonIdempotent}, "not_repeatable"},
		"repeating changes nothing":           {doubtful, dispatch.Policy{Class: dispatch.NaturallyIdempotent}, ""},
		"the key may be forgotten":            {doubtful, keyed, "key_ttl_expired"},
		"a question":                          {question, dispatch.Policy{Class: dispatch.NonIdempotent, Lookup: &dispatch.Lookup{}}, ""},
		"a question that nobody here answers": {question, keyed, "lookup_unconfigured"},
	} {
		if got := refusal(&test.row, test.policy); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
