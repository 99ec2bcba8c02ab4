package operator

import (
	"cmp"
	"context"
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
)

// Step is a command that an operator can use on an intent or an incident in its present state. When says
// in which case it is the right one. The command has no --config, since only the caller knows the file.
type Step struct {
	Command string `json:"command"`
	When    string `json:"when"`
}

// PolicyOf returns the configuration's policy for a provider's operation, and whether it has one. It is nil
// if there is no configuration.
type PolicyOf func(provider, operation string) (dispatch.Policy, bool)

// Next returns the commands that an operator can use on an intent, the safest first. None of them is refused, unless
// the intent has changed in between.
func (c *Console) Next(ctx context.Context, intentID int64, promises PolicyOf) ([]Step, error) {
	standings, err := standingsOf(ctx, c.conn, []int64{intentID})
	if err != nil || len(standings) == 0 {
		return nil, err
	}
	return nextFor(standings[0], promises), nil
}

// NextForIncident does the same for an incident, which may be about an intent.
func (c *Console) NextForIncident(ctx context.Context, incident Incident, promises PolicyOf) ([]Step, error) {
	standings, err := standingsOf(ctx, c.conn, []int64{incident.IntentID})
	if err != nil {
		return nil, err
	}
	var about standing
	if len(standings) == 1 {
		about = standings[0]
	}
	return nextForIncident(incident, about, promises), nil
}

// nextForIncident is a pure function. about describes the incident's intent. It is empty if the intent was
// pruned or the incident has none.
func nextForIncident(incident Incident, about standing, promises PolicyOf) (steps []Step) {
	if incident.State == "resolved" {
		return nil
	}
	show := Step{fmt.Sprintf("drainer intents show %d", incident.IntentID), "to see every attempt of its intent"}
	switch incident.Kind {
	case "unknown_operation", "unconfigured_provider":
		steps = []Step{
			{"drainer doctor", "to see which name no daemon serves, and the nearest one that it does"},
			{"drainer intents list --status pending", "to see the rows that wait for it"},
		}
	case "misconfigured":
		steps = []Step{
			{"drainer intents list --error " + dispatch.Unrenderable, "to find an intent that failed so before: its last attempt says which setting, and why"},
			{"drainer providers list", "to see what is shut; correct the configuration, which is reloaded and tried at once"},
		}
	case "credentials_refused", "forbidden":
		steps = []Step{
			show,
			{"drainer providers list", "to see what is shut, and why; correct the configuration, which is reloaded and tried at once"},
		}
		if incident.IntentID == 0 { // the refused intent is not known any more, and no row waits
			steps = steps[1:]
		}
	case "history_changed":
		steps = []Step{
			{"drainer history", "to see what changed, and which workers miss commits"},
			{`drainer history accept --reason "restored from the backup of 12:00"`, "to go on: rows that were queued are looked up, repeated under their key, or unknown"},
			{`drainer history accept --lossless --reason "the standby was synchronous"`, "to go on as if nothing had happened, where no commit was lost"},
		}
	case "key_collision":
		steps = []Step{show}
	case "first_replay":
		steps = []Step{show, {fmt.Sprintf("drainer sagas show --intent %d", incident.IntentID), "to see whether its run is rolled back"}}
		if about.Saga == "" {
			steps = steps[:1]
		}
	case "compensation_failed", "reversal_window_expired", "saga_stalled":
		steps = []Step{show}
		if about.Saga == "compensation_failed" {
			steps = append(steps, nextForSaga(about)...)
		}
	default:
		if about.IntentID != 0 {
			steps = append([]Step{show}, nextFor(about, promises)...)
		}
	}
	if incident.State == "open" {
		steps = append(steps, Step{
			fmt.Sprintf(`drainer incidents ack %d --reason "looking into it"`, incident.IncidentID), "to end its pages while you work on it",
		})
	}
	return steps
}

// nextFor is a pure function of the intent's state and its class. It returns no step whose [Action] would be refused.
func nextFor(s standing, promises PolicyOf) []Step {
	switch {
	case s.inProgress():
		return []Step{{s.command("intents show"), "to see how the attempt under way ends"}}
	case s.Queued:
		return nextForWaiting(s)
	case s.Status == "unknown", s.MaybeApplied && s.Saga == "":
		return nextForUnknown(s, promises)
	case s.Status == "failed":
		return nextForFailed(s, promises)
	case s.Status == "compensation_failed":
		return nextForSaga(s)
	case s.Status == "cancelled":
		return allowed(s, step{Retry{}, s.command("intents retry", because("wanted after all")), "to send it after all"})
	}
	return nil
}

func nextForWaiting(s standing) []Step {
	steps := allowed(s, step{BringForward{Scheduled: true}, s.command("intents retry", "--now", because("provider is back")), "to send it now, and not when its wait is over"})
	if s.Due {
		steps = []Step{{"drainer providers list", "to see whether its provider is paused or its circuit breaker open: it is due"}}
	}
	return append(steps, allowed(s,
		step{Cancel{}, s.command("intents cancel", because("not wanted any more")), "to take it out of the queue: nothing of it was applied"},
		s.resolve(dispatch.StatusCompleted), s.resolve(dispatch.StatusFailed),
	)...)
}

// nextForUnknown puts the plain retry first if the class and the age of the key make it safe. That retry ends the
// doubt without a look at the provider's records.
func nextForUnknown(s standing, promises PolicyOf) []Step {
	policy, known := promises.of(s)
	plain := step{Retry{PolicyOf: promises}, s.command("intents retry", because("same key")), safety(policy.Class)}
	steps := allowed(s, plain)
	isSafe := len(steps) > 0
	if !isSafe && promises == nil && s.Saga == "" {
		steps = []Step{{s.command("intents show"), "with --config FILE, to see whether a retry is safe"}}
	}
	steps = append(steps, allowed(s, s.resolve(dispatch.StatusCompleted), s.resolve(dispatch.StatusFailed))...)
	if !isSafe && known {
		steps = append(steps, allowed(s, step{
			Retry{MayDuplicate: true},
			s.command("intents retry", "--may-duplicate", because("never arrived")),
			"if twice is better than never: " + Retry{PolicyOf: promises}.danger(s),
		})...)
	}
	if s.Saga == "compensation_failed" && s.isUndo() {
		return append(nextForSaga(s), steps...)
	}
	return steps
}

func safety(class dispatch.Class) string {
	switch class {
	case dispatch.ReadOnly:
		return "safe: it only reads"
	case dispatch.NaturallyIdempotent:
		return "safe: doing it twice is the same as doing it once"
	}
	return "safe: its provider still remembers the key, and does nothing twice"
}

func nextForFailed(s standing, promises PolicyOf) []Step {
	if s.Saga == "compensation_failed" && s.isUndo() {
		return nextForSaga(s)
	}
	if s.Saga != "" {
		return []Step{{s.command("sagas show --intent"), "to see how its run was taken back; that run stays closed"}}
	}
	steps := allowed(s, step{Retry{PolicyOf: promises}, s.command("intents retry", because("cause is gone")), "once the cause of its error is gone: nothing of it was applied"})
	policy, known := promises.of(s)
	if s.LastOutcome == string(dispatch.Rejected) && (!known || policy.Class == dispatch.KeyIdempotent) {
		steps = append(steps, allowed(s, step{
			Retry{NewKey: true},
			s.command("intents retry", "--new-key", because("refusal was saved with the key")),
			"if its provider repeats the refusal that it saved with the key",
		})...)
	}
	steps = append(steps, allowed(s, s.resolve(dispatch.StatusCompleted))...)
	if !s.isUndo() {
		steps = append(steps, Step{s.command("compensate --intent", because("step failed")), "to take back what its run has completed"})
	}
	return steps
}

// nextForSaga returns the steps for a rollback that needs a human.
func nextForSaga(s standing) []Step {
	steps := []Step{
		{s.command("sagas show --intent"), "to see what could not be undone, and why"},
		{s.command("sagas retry --intent", because("cause is gone")), "once the cause is gone: undos are sent again under their keys"},
	}
	if s.Status == "compensation_failed" {
		steps = append(steps, Step{
			s.command("sagas retry --intent", fmt.Sprintf("--undone %d", s.IntentID), because("undone by hand")), "if you have undone it by hand: older steps are undone next",
		})
	}
	return append(steps, Step{s.command("sagas resolve --intent", because("settled outside")), "if nothing more is to be undone"})
}

// step is a command with the action that it takes.
type step struct {
	action        Action
	command, when string
}

// allowed returns those of the steps whose action would not be refused.
func allowed(s standing, steps ...step) (taken []Step) {
	for _, step := range steps {
		if _, refused := step.action.judge(s); refused == "" {
			taken = append(taken, Step{step.command, step.when})
		}
	}
	return taken
}

func (s standing) resolve(as dispatch.Status) step {
	found, when := "found in its records", "if its provider's records show the effect"
	if as == dispatch.StatusFailed {
		found, when = "not in its records", "if they show none, and none can still arrive"
	}
	return step{Resolve{As: as}, s.command("intents resolve", "--as "+string(as), because(found)), when}
}

func (s standing) command(verb string, flags ...string) string {
	command := fmt.Sprintf("drainer %s %d", verb, s.IntentID)
	for _, flag := range flags {
		command += " " + flag
	}
	return command
}

func because(reason string) string { return fmt.Sprintf("--reason %q", reason) }

// of returns the policy of the provider that may have applied the intent.
func (p PolicyOf) of(s standing) (dispatch.Policy, bool) {
	if p == nil {
		return dispatch.Policy{}, false
	}
	tool := dispatch.Tuple{ToolName: s.ToolName}
	return p(cmp.Or(s.Via, tool.Provider()), tool.Operation())
}
