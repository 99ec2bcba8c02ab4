package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIntents(options *options) *cobra.Command {
	command := group("intents", "List intents, show, retry, cancel or resolve them")
	command.AddCommand(
		newIntentsList(options),
		newIntentsShow(options),
		newIntentsRetry(options),
		newIntentsCancel(options),
		newIntentsResolve(options),
	)
	return command
}

func newIntentsList(options *options) *cobra.Command {
	var filter operator.Filter
	command := &cobra.Command{
		Use:   "list",
		Short: "List intents, the newest first",
		Long: `list shows the newest intents first, and at its end the command for the next page.

It finds intents by run, and by every status but completed, wherever they are. For the
rest it looks at the newest 100000, and says so if there are more.`,
		Example: `  drainer intents list --dead
  drainer intents list --status unknown --provider stripe
  drainer intents list --tool stripe/create_charge --error timeout --since 2h
  drainer intents list --run run-001 -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := checkFilter(command, filter); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				page, err := console.List(command.Context(), filter)
				if err != nil {
					return err
				}
				if err := options.print(command, page.Intents, intentTable(page.Intents)); err != nil {
					return err
				}
				if page.Below != 0 {
					options.printMore(command, strconv.FormatInt(page.Below, 10), page.Bounded)
				}
				return nil
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&filter.Status, "status", "", "only those with this `status`: "+strings.Join(operator.Statuses, ", "))
	flags.BoolVar(&filter.Dead, "dead", false, "only those that need a human: failed, unknown with no lookup to come, or not undone")
	flags.StringVar(&filter.Provider, "provider", "", "only this provider's, by `name`")
	flags.StringVar(&filter.Tool, "tool", "", "only this tool's, by `name`: provider/operation")
	flags.StringVar(&filter.Error, "error", "", "only those whose last error has this `text` in it")
	flags.Int64Var(&filter.Below, "cursor", 0, "only those with a lower `number`: the end of a page says which")
	timeFlags(command, "enqueued", &filter.Since, &filter.Until)
	flags.StringVar(&filter.Run, "run", "", "only this agent run's, by `id`")
	flags.IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
}

func intentTable(intents []operator.Intent) table {
	heading := []string{"INTENT", "STATUS", "TOOL", "RUN", "STEP", "SCOPE", "ATTEMPTS", "CREATED", "NEXT ATTEMPT"}
	return tableOf(heading, intents, func(i operator.Intent) []any {
		attempts := strconv.Itoa(i.Attempts)
		if i.LastOutcome != nil {
			attempts += ", " + *i.LastOutcome
		}
		return []any{i.IntentID, state(i.Status), i.ToolName, i.AgentRunID, i.StepID, i.BusinessScope, attempts, i.CreatedAt, i.NextAttemptAt}
	})
}

// checkFilter keeps a typo from passing for an empty list.
func checkFilter(command *cobra.Command, filter operator.Filter) error {
	switch {
	case filter.Limit < 1:
		return usagef(command, "--limit must be at least 1")
	case filter.Status != "" && !slices.Contains(operator.Statuses, filter.Status):
		return usagef(command, "--status: there is no such status; want one of %s", strings.Join(operator.Statuses, ", "))
	}
	return nil
}

func newIntentsShow(options *options) *cobra.Command {
	var tuple dispatch.Tuple
	command := &cobra.Command{
		Use:   "show [INTENT]",
		Short: "Show one intent with its payload, response and every attempt, and what to do next",
		Example: `  drainer intents show 42 --config drainer.yaml
  drainer intents show --run run-001 --step step-1 --tool stripe/create_charge --scope invoice_442 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			intent, err := readReference(command, args, tuple)
			if err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				dossier, err := intent.show(command.Context(), console)
				if err != nil {
					return err
				}
				next, err := console.Next(command.Context(), dossier.IntentID, options.promises(command))
				if err != nil {
					return err
				}
				return options.printDossier(command, dossier, next)
			})
		},
	}
	tupleFlags(command, &tuple)
	return command
}

func (o *options) printDossier(command *cobra.Command, d *operator.Dossier, next []operator.Step) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, d)
	}
	var gate operator.Provider
	if d.Gate != nil {
		gate = *d.Gate
		if gate.Paused || gate.Breaker != "open" {
			gate.OpenUntil = nil // of a pause no end is known, and the row that tries it is under way
		}
	}
	err := details{
		{"intent", d.IntentID},
		{"run", d.AgentRunID},
		{"step", d.StepID},
		{"tool", d.ToolName},
		{"scope", d.BusinessScope},
		{"idempotency key", d.IdempotencyKey},
		{"status", state(d.Status)},
		{"created", d.CreatedAt},
		{"finished", d.FinishedAt},
		{"next attempt", d.NextAttemptAt},
		{"waits for", gate.Why()},
		{"tried again", gate.OpenUntil},
		{"provider ref", d.ProviderRef},
		{"payload", string(d.Payload)},
		{"response", string(d.Response)},
	}.print(out)
	if err != nil {
		return err
	}
	history := make([]operator.Event, len(d.History))
	newKeys := false
	for i, attempt := range d.History {
		history[i] = operator.Event{IntentID: d.IntentID, Attempt: attempt}
		newKeys = newKeys || attempt.IdempotencyKey != d.IdempotencyKey
	}
	if err := printHistory(out, history, false, newKeys); err != nil {
		return err
	}
	return o.printNext(out, "", next)
}

// what marks a lookup, which asks about an attempt and sends nothing new.
func what(a operator.Attempt) string {
	if a.Lookup {
		return "lookup: " + a.Outcome
	}
	return a.Outcome
}

// actor is who made an attempt, and the fallback that served it. An operator's name
// is only what was said, so the login stands beside it.
func actor(a operator.Attempt) string {
	if strings.HasPrefix(a.Worker, "operator:") {
		return a.Worker + " (login " + a.Login + ")"
	}
	if a.ServedBy != nil {
		return a.Worker + " via " + *a.ServedBy
	}
	return a.Worker
}

// reference names one intent: by its key, or by its id if there is no key.
type reference struct {
	id  int64
	key dispatch.Tuple
}

// readReference reads from the command line which intent is meant. It does not
// look it up.
func readReference(command *cobra.Command, args []string, key dispatch.Tuple) (reference, error) {
	if len(args) == 0 {
		return reference{key: key}, checkKey(command, key)
	}
	if key != (dispatch.Tuple{}) {
		return reference{}, usagef(command, "name an intent by its id or by its key, not by both")
	}
	id, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return reference{}, usagef(command, "an intent's id is a number; `drainer intents list` shows it")
	}
	return reference{id: id}, nil
}

func checkKey(command *cobra.Command, key dispatch.Tuple) error {
	if key == (dispatch.Tuple{}) {
		return usagef(command, "name an intent by its id, or by --run, --step, --tool and --scope")
	}
	if missing := missingFlags(key); len(missing) > 0 {
		return usagef(command, "an intent's key has four parts; %s", areMissing(missing))
	}
	if err := key.Validate(); err != nil {
		return usagef(command, "%w", err)
	}
	return nil
}

func missingFlags(key dispatch.Tuple) []string {
	var missing []string
	for _, part := range []struct{ flag, value string }{
		{"--run", key.AgentRunID}, {"--step", key.StepID}, {"--tool", key.ToolName}, {"--scope", key.BusinessScope},
	} {
		if part.value == "" {
			missing = append(missing, part.flag)
		}
	}
	return missing
}

func areMissing(flags []string) string {
	last := len(flags) - 1
	if last == 0 {
		return flags[0] + " is missing"
	}
	return strings.Join(flags[:last], ", ") + " and " + flags[last] + " are missing"
}

func (r reference) show(ctx context.Context, console *operator.Console) (*operator.Dossier, error) {
	if r.key == (dispatch.Tuple{}) {
		dossier, err := console.Show(ctx, r.id)
		return dossier, r.explain(err)
	}
	dossier, err := console.ShowTuple(ctx, r.key)
	return dossier, r.explain(err)
}

func (r reference) find(ctx context.Context, console *operator.Console) (int64, error) {
	if r.key == (dispatch.Tuple{}) {
		return r.id, nil
	}
	id, err := console.Find(ctx, r.key)
	return id, r.explain(err)
}

// explain names the intent that is not there. A key's parts are not repeated.
func (r reference) explain(err error) error {
	switch {
	case !errors.Is(err, operator.ErrNotFound):
		return err
	case r.key == (dispatch.Tuple{}):
		return fmt.Errorf("%w: %d; `drainer intents list` shows those there are", err, r.id)
	}
	return fmt.Errorf("%w with this key; `drainer intents list` shows those there are", err)
}
