package model_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/model/real"
	"github.com/agentoutbox/drainer/model/row"
	"github.com/agentoutbox/drainer/model/saga"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// The models would say nothing about a word that is new in the schema.
func TestTheModelsKnowTheWordsOfTheSchema(t *testing.T) {
	t.Parallel()
	o := real.New(t)
	for _, test := range []struct {
		constraint string
		known      []string
	}{
		{"attempt_status_check", append(row.Statuses(), saga.Statuses()...)},
		{"saga_state_check", saga.States()},
		{"incident_kind_check", []string{
			"outcome_unknown", "compensation_failed",
			"reversal_window_expired", "key_collision", "unconfigured_provider", "saga_stalled", "refused_intent", "unknown_operation", "first_replay",
			"credentials_refused", "forbidden", "misconfigured", "history_changed", // these are not modelled
		}},
	} {
		slices.Sort(test.known)
		known := slices.Compact(test.known)
		allowed := wordsOf(o, test.constraint)
		if slices.Sort(allowed); !slices.Equal(allowed, known) {
			t.Errorf("%s allows %q, the models know %q", test.constraint, allowed, known)
		}
	}
}

func wordsOf(o *real.Outbox, constraint string) (words []string) {
	o.T.Helper()
	definition := real.All[string](o, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1`, constraint)[0]
	for _, quoted := range regexp.MustCompile(`'(\w+)'`).FindAllStringSubmatch(definition, -1) {
		words = append(words, quoted[1])
	}
	return words
}

func TestTheModelKnowsTheStatesThatOperatorsAreShown(t *testing.T) {
	t.Parallel()
	shown := slices.Sorted(slices.Values(operator.SagaStates))
	if known := slices.Sorted(slices.Values(saga.States())); !slices.Equal(known, shown) {
		t.Errorf("operators are shown %q, the model knows %q", shown, known)
	}
}
