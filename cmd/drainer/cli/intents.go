package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIntents(options *options) *cobra.Command {
	command := group("intents", "List intents, show one with its history, retry, cancel or resolve them")
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
		Example: `  drainer intents list --dead
  drainer intents list --status unknown --provider stripe
  drainer intents list --run run-001 -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := checkFilter(command, filter); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				intents, err := console.List(command.Context(), filter)
				if err != nil {
					return err
				}
				return options.print(command, intents,
					[]string{"INTENT", "RUN", "STEP", "TOOL", "SCOPE", "STATUS", "ATTEMPTS", "LAST OUTCOME", "NEXT ATTEMPT"}, intentRows(intents))
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&filter.Status, "status", "", "only those with this `status`: "+strings.Join(operator.Statuses, ", "))
	flags.BoolVar(&filter.Dead, "dead", false, "only those that need a human: failed, unknown with no lookup to come, or not undone")
	flags.StringVar(&filter.Provider, "provider", "", "only this provider's, by `name`")
	flags.StringVar(&filter.Run, "run", "", "only this agent run's, by `id`")
	flags.IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
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
		Short: "Show one intent with its payload, response and every attempt",
		Example: `  drainer intents show 42
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
				return options.printDossier(command, dossier)
			})
		},
	}
	tupleFlags(command, &tuple)
	return command
}

func intentRows(intents []operator.Intent) [][]string {
	rows := make([][]string, len(intents))
	for i, intent := range intents {
		rows[i] = []string{
			strconv.FormatInt(intent.IntentID, 10), intent.AgentRunID, intent.StepID, intent.ToolName, intent.BusinessScope,
			intent.Status, strconv.Itoa(intent.Attempts), text(intent.LastOutcome), moment(intent.NextAttemptAt),
		}
	}
	return rows
}

func (o *options) printDossier(command *cobra.Command, d *operator.Dossier) error {
	if o.output == jsonText {
		return printJSON(command.OutOrStdout(), d)
	}
	out := command.OutOrStdout()
	fields := [][]string{
		{"key", d.AgentRunID + "  " + d.StepID + "  " + d.ToolName + "  " + d.BusinessScope},
		{"idempotency key", d.IdempotencyKey},
		{"status", d.Status},
		{"created", moment(&d.CreatedAt)},
		{"finished", moment(d.FinishedAt)},
		{"next attempt", moment(d.NextAttemptAt)},
		{"provider ref", text(d.ProviderRef)},
		{"payload", string(d.Payload)},
		{"response", string(d.Response)},
	}
	if err := printTable(out, []string{"intent", strconv.FormatInt(d.IntentID, 10)}, fields); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return printTable(out, []string{"ATTEMPT", "FINISHED", "OUTCOME", "STATUS", "HTTP", "ERROR", "BY", "REASON"}, attemptRows(d.History))
}

func attemptRows(history []operator.Attempt) [][]string {
	rows := make([][]string, len(history))
	for i, a := range history {
		http := ""
		if a.HTTPStatus != nil {
			http = strconv.Itoa(*a.HTTPStatus)
		}
		rows[i] = []string{strconv.Itoa(a.Attempt), moment(&a.FinishedAt), what(a), a.Status, http, text(a.Error), actor(a), text(a.Reason)}
	}
	return rows
}

// what tells a question about an attempt from an attempt.
func what(a operator.Attempt) string {
	if a.Lookup {
		return "lookup: " + a.Outcome
	}
	return a.Outcome
}

// actor is who made an attempt, and the fallback that served it.
func actor(a operator.Attempt) string {
	if a.ServedBy != nil {
		return a.Worker + " via " + *a.ServedBy
	}
	return a.Worker
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func moment(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Local().Format(time.DateTime)
}
