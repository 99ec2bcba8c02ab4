package operator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Meanwhile is an action that calls Do after the row was read and before it is changed.
type Meanwhile struct {
	Action
	Do func()
}

func (m Meanwhile) judge(s standing) (change, refusal) {
	m.Do()
	return m.Action.judge(s)
}

// LookAtMost lowers the bound of a listing.
func (c *Console) LookAtMost(rows int) { c.look = rows }

var (
	inProgress = standing{Status: "in_progress"}
	waiting    = standing{Status: "pending", Queued: true}
	doubtful   = standing{Status: "pending", Queued: true, MaybeApplied: true}
	parked     = standing{Status: "pending", Queued: true}
	due        = standing{Status: "pending", Queued: true, Due: true}
	answered   = standing{Status: "unknown", Queued: true, MaybeApplied: true, Lookup: true, Asked: true}
	scheduled  = standing{Status: "pending", Queued: true, NotBefore: new(time.Time)}
	asking     = standing{Status: "unknown", Queued: true, MaybeApplied: true, Lookup: true}
)

func settled(status string) standing {
	return standing{Status: status, Settled: true, MaybeApplied: status == "unknown", ToolName: "sim/act"}
}

// beforeLoss returns the standing of an intent that was settled before commits were lost.
func beforeLoss(s standing) standing {
	s.BeforeLoss, s.MaybeApplied = true, true
	return s
}

func reported(s standing, outcome string) standing {
	s.LastOutcome = outcome
	return s
}

// inSaga returns the standing of a step whose run's saga is in that state.
func inSaga(saga string, s standing) standing {
	s.IntentID, s.Saga = 36, saga
	return s
}

func undo(s standing) standing {
	s.StepID = "compensate:35"
	return s
}

var (
	resolveCompleted = Resolve{As: dispatch.StatusCompleted}
	resolveFailed    = Resolve{As: dispatch.StatusFailed}
)

// Each row is a transition; refused is a part of its refusal's text.
func TestWhatAnOperatorMayDo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		action  Action
		from    standing
		to      string
		refused string
	}{
		"cancel what waits":                        {Cancel{}, waiting, "cancelled", ""},
		"cancel what may have been applied":        {Cancel{}, doubtful, "", "resolve it"},
		"cancel what is asked for":                 {Cancel{}, asking, "", "resolve it"},
		"cancel in progress":                       {Cancel{}, inProgress, "", "wait until the attempt has ended"},
		"cancel completed":                         {Cancel{}, settled("completed"), "", "only what waits"},
		"cancel failed":                            {Cancel{}, settled("failed"), "", "only what waits"},
		"cancel in a run under compensation":       {Cancel{}, inSaga("begun", waiting), "", "cancelled by itself"},
		"retry failed":                             {Retry{}, settled("failed"), "pending", ""},
		"retry cancelled":                          {Retry{}, settled("cancelled"), "pending", ""},
		"retry unknown without a configuration":    {Retry{}, settled("unknown"), "", "--config"},
		"retry unknown and accept a duplicate":     {Retry{MayDuplicate: true}, settled("unknown"), "pending", ""},
		"accept a duplicate of its tool":           {Retry{MayDuplicate: true, Tool: new("sim/act")}, settled("unknown"), "pending", ""},
		"accept a duplicate of another tool":       {Retry{MayDuplicate: true, Tool: new("")}, settled("unknown"), "", "only the tool that you name"},
		"retry failed under a new key":             {Retry{NewKey: true}, settled("failed"), "pending", ""},
		"retry unknown under a new key":            {Retry{NewKey: true, PolicyOf: configuredAs(dispatch.KeyIdempotent)}, settled("unknown"), "", "--may-duplicate"},
		"accept a duplicate under a new key":       {Retry{NewKey: true, MayDuplicate: true}, settled("unknown"), "pending", ""},
		"retry cancelled under a new key":          {Retry{NewKey: true}, settled("cancelled"), "", "without --new-key"},
		"retry in a run, under a new key":          {Retry{NewKey: true, MayDuplicate: true}, inSaga("begun", settled("failed")), "", "start a new run"},
		"retry failed before a loss":               {Retry{PolicyOf: configuredAs(dispatch.NonIdempotent)}, beforeLoss(settled("failed")), "", "commits were lost"},
		"retry cancelled before a loss":            {Retry{PolicyOf: configuredAs(dispatch.NonIdempotent)}, beforeLoss(settled("cancelled")), "", "commits were lost"},
		"retry before a loss, with a fallback":     {Retry{PolicyOf: withFallback(dispatch.KeyIdempotent)}, beforeLoss(settled("failed")), "", "fallback may have applied it"},
		"repeat a read before a loss":              {Retry{PolicyOf: withFallback(dispatch.ReadOnly)}, beforeLoss(settled("failed")), "pending", ""},
		"retry before a loss, without a fallback":  {Retry{PolicyOf: configuredAs(dispatch.NaturallyIdempotent)}, beforeLoss(settled("failed")), "pending", ""},
		"retry after a loss, with a fallback":      {Retry{PolicyOf: withFallback(dispatch.KeyIdempotent)}, settled("failed"), "pending", ""},
		"retry under a new key before a loss":      {Retry{NewKey: true}, beforeLoss(settled("failed")), "", "commits were lost"},
		"accept a duplicate before a loss":         {Retry{MayDuplicate: true}, beforeLoss(settled("failed")), "pending", ""},
		"retry completed":                          {Retry{MayDuplicate: true}, settled("completed"), "", "another step_id"},
		"retry compensated":                        {Retry{}, settled("compensated"), "", "only failed, unknown and cancelled"},
		"retry what waits":                         {Retry{}, waiting, "", "in the queue already"},
		"retry what is asked for":                  {Retry{}, asking, "", "lookup waits"},
		"retry in progress":                        {Retry{}, inProgress, "", "wait until the attempt has ended"},
		"bring forward what waits":                 {BringForward{}, parked, "pending", ""},
		"bring forward what may have been applied": {BringForward{}, doubtful, "pending", ""},
		"bring forward an undo":                    {BringForward{}, inSaga("begun", undo(parked)), "pending", ""},
		"bring forward what is due":                {BringForward{}, due, "", "due already"},
		"bring forward in progress":                {BringForward{}, inProgress, "", "wait until the attempt has ended"},
		"bring forward failed":                     {BringForward{}, settled("failed"), "", "without --now"},
		"bring forward a question":                 {BringForward{}, answered, "unknown", ""},
		"bring forward a question not asked yet":   {BringForward{}, asking, "", "until no send"},
		"bring forward what is scheduled":          {BringForward{}, scheduled, "", "name it alone"},
		"bring forward that very intent":           {BringForward{Scheduled: true}, scheduled, "pending", ""},
		"retry in a run under compensation":        {Retry{MayDuplicate: true}, inSaga("begun", settled("failed")), "", "start a new run"},
		"cancel an undo":                           {Cancel{}, inSaga("begun", undo(waiting)), "", "drainer sagas resolve --intent 36"},
		"cancel an undo that ended":                {Cancel{}, inSaga("compensation_failed", undo(settled("failed"))), "", "only what waits"},
		"retry an undo that failed":                {Retry{}, inSaga("compensation_failed", undo(settled("failed"))), "", "drainer sagas retry --intent 36"},
		"retry an undo of unknown outcome":         {Retry{}, inSaga("compensation_failed", undo(settled("unknown"))), "", "drainer sagas retry --intent 36"},
		"retry an undo that waits":                 {Retry{}, inSaga("begun", undo(waiting)), "", "in the queue already"},
		"retry a step that was not undone":         {Retry{}, inSaga("compensation_failed", settled("compensation_failed")), "", "drainer sagas retry --intent 36"},
		"retry what its saga waits for":            {Retry{MayDuplicate: true}, inSaga("begun", settled("unknown")), "", "drainer intents resolve 36"},
		"retry a lookup that its saga waits for":   {Retry{}, inSaga("begun", asking), "", "lookup waits"},
		"retry in a cancelled run":                 {Retry{}, inSaga("cancelled", settled("cancelled")), "", "was cancelled"},
		"resolve in a cancelled run":               {resolveCompleted, inSaga("cancelled", settled("failed")), "", "was cancelled"},
		"resolve a step that was not undone":       {resolveFailed, inSaga("compensation_failed", settled("compensation_failed")), "", "--intent 36 --undone 36"},
		"resolve unknown as completed":             {resolveCompleted, settled("unknown"), "completed", ""},
		"resolve unknown as failed":                {resolveFailed, settled("unknown"), "failed", ""},
		"resolve failed as completed":              {resolveCompleted, settled("failed"), "completed", ""},
		"resolve failed as failed":                 {resolveFailed, settled("failed"), "", "failed already"},
		"resolve completed as failed":              {resolveFailed, reported(settled("completed"), "completed"), "", "its provider reported"},
		"correct a resolution":                     {resolveFailed, reported(settled("completed"), "resolved"), "failed", ""},
		"repeat a resolution":                      {resolveCompleted, reported(settled("completed"), "resolved"), "", "completed already"},
		"name the effect after a resolution":       {Resolve{As: dispatch.StatusCompleted, ProviderRef: "r"}, reported(settled("completed"), "resolved"), "completed", ""},
		"name the effect that a provider named":    {Resolve{As: dispatch.StatusCompleted, ProviderRef: "r"}, reported(settled("completed"), "completed"), "", "completed already"},
		"resolve cancelled":                        {resolveCompleted, settled("cancelled"), "", "only unknown and failed"},
		"confirm what failed before a loss":        {resolveFailed, beforeLoss(settled("failed")), "failed", ""},
		"resolve cancelled before a loss":          {resolveCompleted, beforeLoss(settled("cancelled")), "completed", ""},
		"resolve compensation_failed":              {resolveCompleted, settled("compensation_failed"), "", "only unknown and failed"},
		"resolve what waits":                       {resolveCompleted, waiting, "", "cancel it instead"},
		"resolve what may have been applied":       {resolveCompleted, doubtful, "completed", ""},
		"resolve what is asked for":                {resolveFailed, asking, "failed", ""},
		"resolve in progress":                      {resolveFailed, inProgress, "", "wait until the attempt has ended"},
		"resolve unknown in a compensated run":     {resolveFailed, inSaga("begun", settled("unknown")), "failed", ""},
		"resolve failed in a compensated run":      {resolveCompleted, inSaga("begun", settled("failed")), "", "only unknown intents"},
		"resolve a lookup in a compensated run":    {resolveCompleted, inSaga("begun", asking), "completed", ""},
		"resolve what waits in a compensated run":  {resolveFailed, inSaga("begun", doubtful), "", "only unknown intents"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change, refused := test.action.judge(test.from)
			if test.refused == "" && (refused != "" || change.status != test.to) {
				t.Errorf("it becomes %q, refused because %q; want %q", change.status, refused, test.to)
			}
			if test.refused != "" && !strings.Contains(string(refused), test.refused) {
				t.Errorf("refused because %q, want %q in it", refused, test.refused)
			}
		})
	}
}

// The rules of the tool's class decide whether an effect in doubt may be repeated. A guess never does.
func TestRetryingADoubtfulEffectFollowsTheToolsPolicy(t *testing.T) {
	t.Parallel()
	const ttl = 24 * time.Hour
	sent := time.Now()
	for name, test := range map[string]struct {
		policy  dispatch.Policy
		age     time.Duration
		via     string
		refused string
	}{
		"read_only":                  {dispatch.Policy{Class: dispatch.ReadOnly}, 90 * ttl, "", ""},
		"naturally_idempotent":       {dispatch.Policy{Class: dispatch.NaturallyIdempotent}, 90 * ttl, "", ""},
		"key remembered":             {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, ttl/2 - time.Second, "", ""},
		"key perhaps forgotten":      {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, ttl / 2, "", "first sent 12h0m0s ago"},
		"non_idempotent, just sent":  {dispatch.Policy{Class: dispatch.NonIdempotent}, 0, "", "repeating does it again"},
		"non_idempotent, sent first": {dispatch.Policy{Class: dispatch.NonIdempotent}, ttl, "", "repeating does it again"},
		"at its fallback":            {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, 0, "spare", ""},
		"at either, commits lost":    {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, 0, "sim", "fallback may have applied it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settled("unknown")
			s.FirstAttemptAt, s.SecondsSinceFirst, s.Via = &sent, test.age.Seconds(), test.via
			known := func(string, string) (dispatch.Policy, bool) { return test.policy, true }

			change, refused := Retry{PolicyOf: known}.judge(s)
			if !strings.Contains(string(refused), test.refused) || (test.refused == "") != (refused == "") {
				t.Errorf("refused because %q, want %q", refused, test.refused)
			}
			if test.refused == "" && (change.outcome != "retried" || change.requeue.firstAttemptAt != &sent) {
				t.Errorf("the row is requeued as %+v, want the time it was first sent kept", change.requeue)
			}

			accepted, refused := Retry{PolicyOf: known, MayDuplicate: true}.judge(s)
			if refused != "" || !accepted.requeue.maybeApplied {
				t.Errorf("with the duplicate accepted: %+v, %q; want it back with its doubt", accepted, refused)
			}
			if accepted.requeue.via == "sim" {
				t.Error("with the duplicate accepted it would still be ended as in doubt")
			}
			if wantFresh := test.refused != ""; (accepted.requeue.firstAttemptAt == nil) != wantFresh || (accepted.outcome == "retried_may_duplicate") != wantFresh {
				t.Errorf("the row is requeued as %+v (%s), want a new clock only where the old one had run out", accepted.requeue, accepted.outcome)
			}
		})
	}
}

func TestTheToolThatMayHaveAppliedItIsTheOneToAsk(t *testing.T) {
	t.Parallel()
	s := settled("unknown")
	s.ToolName = "sim/charge/card"
	for via, want := range map[string]string{"": "sim", "spare": "spare"} {
		s.Via = via
		var asked string
		change, _ := Retry{PolicyOf: func(provider, operation string) (dispatch.Policy, bool) {
			asked = provider + " " + operation
			return dispatch.Policy{Class: dispatch.ReadOnly}, true
		}}.judge(s)
		if asked != want+" charge/card" || change.requeue.via != via {
			t.Errorf("via %q: asked for %q, requeued via %q", via, asked, change.requeue.via)
		}
	}
}

func TestAToolThatIsNotConfiguredIsNotRepeatedByGuess(t *testing.T) {
	t.Parallel()
	unknown := func(string, string) (dispatch.Policy, bool) { return dispatch.Policy{}, false }
	if _, refused := (Retry{PolicyOf: unknown}).judge(settled("unknown")); !strings.Contains(string(refused), "does not know its tool") {
		t.Errorf("refused because %q", refused)
	}
	if _, refused := (Retry{PolicyOf: unknown}).judge(settled("failed")); refused != "" {
		t.Errorf("a failed one is refused because %q, though nothing was applied", refused)
	}
}

func TestASignatureIsANameAndAReasonOfOneLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		signature Signature
		valid     bool
	}{
		{Signature{"on-call", "outage is over"}, true},
		{Signature{"", "outage is over"}, false},
		{Signature{"on-call", " "}, false},
		{Signature{"on-call", "two\nlines"}, false},
		{Signature{"on-call", "two\u2028lines"}, false},
		{Signature{"پی\u200cجر", "joined by no line's end"}, true},
		{Signature{"on-call\x1b[2J", "outage is over"}, false},
		{Signature{"on-call", "nul \x00"}, false},
		{Signature{"on-call", "\xff"}, false},
	} {
		if err := test.signature.Validate(); (err == nil) != test.valid {
			t.Errorf("%q: %v, want valid %v", test.signature, err, test.valid)
		}
	}
}

func configuredAs(class dispatch.Class) func(string, string) (dispatch.Policy, bool) {
	return func(string, string) (dispatch.Policy, bool) {
		return dispatch.Policy{Class: class, KeyTTL: time.Hour}, true
	}
}

func withFallback(class dispatch.Class) func(string, string) (dispatch.Policy, bool) {
	return func(string, string) (dispatch.Policy, bool) {
		return dispatch.Policy{Class: class, KeyTTL: time.Hour, HasFallback: true}, true
	}
}

// Each row lists the commands, without `drainer ` and their reasons, in their order.
func TestWhatToDoNextFollowsTheClassAndTheEvidence(t *testing.T) {
	t.Parallel()
	old := func(s standing) standing {
		s.SecondsSinceFirst = time.Hour.Seconds() // the key's life is one hour
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
		"failed before a loss, a fallback":  {beforeLoss(settled("failed")), withFallback(dispatch.KeyIdempotent), riskily},
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

func TestARefusalOfNoKnownIntentShowsNone(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"credentials_refused", "forbidden"} {
		got := commands(t, nextForIncident(Incident{IncidentID: 7, Kind: kind, State: "open"}, standing{}, configuredAs(dispatch.KeyIdempotent)))
		if want := []string{"providers list", "incidents ack 7"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
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

func TestOnlyStepsThatChangeAreSaidToChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		does    RunAction
		changes []string
	}{
		"a rollback":      {RollBackRun, []string{"pending", "in_progress", "completed", "unknown"}},
		"a cancelled run": {CloseRun, []string{"pending", "in_progress"}},
		"a retry":         {GoOnWithSaga, []string{"completed", "compensation_failed"}},
		"an end":          {EndSaga, nil},
	} {
		story := &RunStory{}
		for _, status := range Statuses {
			story.Steps = append(story.Steps, SagaStep{Intent: Intent{Status: status}})
		}
		var changes []string
		for _, step := range test.does.preview(story, nil).Steps {
			if step.After != step.Before {
				changes = append(changes, step.Before)
			}
		}
		if !slices.Equal(changes, test.changes) {
			t.Errorf("%s changes steps that are %v, want %v", name, changes, test.changes)
		}
	}
}
