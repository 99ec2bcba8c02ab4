package operator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Each row lists the commands, without `drainer ` and their reasons, in their order.
func TestWhatToDoNextFollowsTheClassAndTheEvidence(t *testing.T) {
	t.Parallel()
	old := func(s standing) standing {
		s.SecondsSinceFirst = time.Hour.Seconds() // of a key that lives for one
		return s
	}
	numbered := func(s standing) standing {
		s.IntentID = 36
		return s
	}
	found := []string{"intents resolve 36 --as completed", "intents resolve 36 --as failed"}
	safely := append([]string{"intents retry 36"}, found...)
	riskily := append(slices.Clone(found), "intents retry 36 --may-duplicate")
	saga := []string{"sagas show --intent 36", "sagas retry --intent 36", "sagas resolve --intent 36"}
	for name, test := range map[string]struct {
		at       standing
		promises PolicyOf
		want     []string
	}{
		"unknown, it only reads":            {settled("unknown"), configuredAs(dispatch.ReadOnly), safely},
		"unknown, idempotent by nature":     {settled("unknown"), configuredAs(dispatch.NaturallyIdempotent), safely},
		"unknown, the key is remembered":    {settled("unknown"), configuredAs(dispatch.KeyIdempotent), safely},
		"unknown, the key may be forgotten": {old(settled("unknown")), configuredAs(dispatch.KeyIdempotent), riskily},
		"unknown, non_idempotent":           {settled("unknown"), configuredAs(dispatch.NonIdempotent), riskily},
		"unknown, without a configuration":  {settled("unknown"), nil, append([]string{"intents show 36"}, found...)},
		"unknown, its saga waits":           {inSaga("begun", settled("unknown")), configuredAs(dispatch.ReadOnly), found},
		"unknown, a lookup waits":           {asking, configuredAs(dispatch.KeyIdempotent), found},
		"unknown, a lookup found nothing":   {answered, configuredAs(dispatch.KeyIdempotent), append([]string{"intents retry 36 --now"}, found...)},
		"failed":                            {settled("failed"), configuredAs(dispatch.NonIdempotent), []string{"intents retry 36", "intents resolve 36 --as completed", "compensate --intent 36"}},
		"failed, the refusal may be saved":  {reported(settled("failed"), "rejected"), configuredAs(dispatch.KeyIdempotent), []string{"intents retry 36", "intents retry 36 --new-key", "intents resolve 36 --as completed", "compensate --intent 36"}},
		"failed, refused without a key":     {reported(settled("failed"), "rejected"), configuredAs(dispatch.ReadOnly), []string{"intents retry 36", "intents resolve 36 --as completed", "compensate --intent 36"}},
		"failed, its run was taken back":    {inSaga("compensated", settled("failed")), configuredAs(dispatch.ReadOnly), []string{"sagas show --intent 36"}},
		"an undo that failed":               {inSaga("compensation_failed", undo(settled("failed"))), nil, saga},
		"an undo of unknown outcome":        {inSaga("compensation_failed", undo(settled("unknown"))), configuredAs(dispatch.ReadOnly), append(slices.Clone(saga), found...)},
		"a step that was not undone":        {inSaga("compensation_failed", settled("compensation_failed")), nil, slices.Insert(slices.Clone(saga), 2, "sagas retry --intent 36 --undone 36")},
		"in progress":                       {inProgress, nil, []string{"intents show 36"}},
		"waiting for its time":              {parked, nil, []string{"intents retry 36 --now", "intents cancel 36"}},
		"due":                               {due, nil, []string{"providers list", "intents cancel 36"}},
		"waiting, and perhaps applied":      {doubtful, nil, append([]string{"intents retry 36 --now"}, found...)},
		"cancelled":                         {settled("cancelled"), nil, []string{"intents retry 36"}},
		"cancelled with its run":            {inSaga("cancelled", settled("cancelled")), nil, nil},
		"completed":                         {reported(settled("completed"), "completed"), configuredAs(dispatch.ReadOnly), nil},
		"compensated":                       {inSaga("compensated", settled("compensated")), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := commands(t, nextFor(numbered(test.at), test.promises)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestWhatToDoNextAboutAnIncident(t *testing.T) {
	t.Parallel()
	unknown := settled("unknown")
	unknown.IntentID = 36
	for name, test := range map[string]struct {
		kind, state string
		about       standing
		want        []string
	}{
		"outcome_unknown":               {"outcome_unknown", "open", unknown, []string{"intents show 36", "intents retry 36", "intents resolve 36 --as completed", "intents resolve 36 --as failed", "incidents ack 7"}},
		"acknowledged":                  {"key_collision", "acknowledged", standing{}, []string{"intents show 36"}},
		"resolved":                      {"outcome_unknown", "resolved", unknown, nil},
		"its intent was pruned":         {"outcome_unknown", "open", standing{}, []string{"incidents ack 7"}},
		"key_collision":                 {"key_collision", "open", settled("completed"), []string{"intents show 36", "incidents ack 7"}},
		"first_replay":                  {"first_replay", "open", settled("completed"), []string{"intents show 36", "incidents ack 7"}},
		"first_replay, rolled back run": {"first_replay", "open", inSaga("begun", settled("completed")), []string{"intents show 36", "sagas show --intent 36", "incidents ack 7"}},
		"compensation_failed":           {"compensation_failed", "open", inSaga("compensation_failed", settled("compensation_failed")), []string{"intents show 36", "sagas show --intent 36", "sagas retry --intent 36", "sagas retry --intent 36 --undone 36", "sagas resolve --intent 36", "incidents ack 7"}},
		"saga_stalled":                  {"saga_stalled", "open", inSaga("compensation_failed", settled("completed")), []string{"intents show 36", "sagas show --intent 36", "sagas retry --intent 36", "sagas resolve --intent 36", "incidents ack 7"}},
		"credentials_refused":           {"credentials_refused", "open", waiting, []string{"intents show 36", "providers list", "incidents ack 7"}},
		"forbidden":                     {"forbidden", "open", waiting, []string{"intents show 36", "providers list", "incidents ack 7"}},
		"misconfigured":                 {"misconfigured", "open", waiting, []string{"intents list --error unrenderable_request", "providers list", "incidents ack 7"}},
		"unknown_operation":             {"unknown_operation", "open", waiting, []string{"doctor", "intents list --status pending", "incidents ack 7"}},
		"unconfigured_provider":         {"unconfigured_provider", "open", waiting, []string{"doctor", "intents list --status pending", "incidents ack 7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			incident := Incident{IncidentID: 7, IntentID: 36, Kind: test.kind, State: test.state}
			if got := commands(t, nextForIncident(incident, test.about, configuredAs(dispatch.KeyIdempotent))); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func commands(t *testing.T, steps []Step) (all []string) {
	t.Helper()
	for _, step := range steps {
		if step.When == "" {
			t.Errorf("%s does not say when", step.Command)
		}
		command, _, _ := strings.Cut(strings.TrimPrefix(step.Command, "drainer "), " --reason ")
		all = append(all, command)
	}
	return all
}
