package operator

import (
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Meanwhile is an action between whose decision and execution something
// happens.
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

func reported(s standing, outcome string) standing {
	s.LastOutcome = outcome
	return s
}

// inSaga is a step of a run whose saga stands there.
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
		"retry failed under a new key":             {Retry{NewKey: true}, settled("failed"), "pending", ""},
		"retry unknown under a new key":            {Retry{NewKey: true, PolicyOf: configuredAs(dispatch.KeyIdempotent)}, settled("unknown"), "", "--may-duplicate"},
		"accept a duplicate under a new key":       {Retry{NewKey: true, MayDuplicate: true}, settled("unknown"), "pending", ""},
		"retry cancelled under a new key":          {Retry{NewKey: true}, settled("cancelled"), "", "without --new-key"},
		"retry in a run, under a new key":          {Retry{NewKey: true, MayDuplicate: true}, inSaga("begun", settled("failed")), "", "start a new run"},
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

// An effect in doubt is repeated by the classes' rules, and never on a guess.
func TestRetryingADoubtfulEffectFollowsTheToolsPolicy(t *testing.T) {
	t.Parallel()
	const ttl = 24 * time.Hour
	sent := time.Now()
	for name, test := range map[string]struct {
		policy  dispatch.Policy
		age     time.Duration
		refused string
	}{
		"read_only":                  {dispatch.Policy{Class: dispatch.ReadOnly}, 90 * ttl, ""},
		"naturally_idempotent":       {dispatch.Policy{Class: dispatch.NaturallyIdempotent}, 90 * ttl, ""},
		"key remembered":             {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, ttl/2 - time.Second, ""},
		"key perhaps forgotten":      {dispatch.Policy{Class: dispatch.KeyIdempotent, KeyTTL: ttl}, ttl / 2, "first sent 12h0m0s ago"},
		"non_idempotent, just sent":  {dispatch.Policy{Class: dispatch.NonIdempotent}, 0, "repeating does it again"},
		"non_idempotent, sent first": {dispatch.Policy{Class: dispatch.NonIdempotent}, ttl, "repeating does it again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settled("unknown")
			s.FirstAttemptAt, s.SecondsSinceFirst = &sent, test.age.Seconds()
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
