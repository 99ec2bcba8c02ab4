package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newSagas(options *options) *cobra.Command {
	command := group("sagas", "List runs that are compensated, show one, retry or resolve it")
	command.AddCommand(
		newSagasList(options),
		newSagasShow(options),
		newSagasRetry(options),
		newSagaChange(options, sagaResolve),
	)
	return command
}

func newSagasList(options *options) *cobra.Command {
	var filter operator.SagaFilter
	command := &cobra.Command{
		Use:   "list",
		Short: "List sagas, the newest first",
		Example: `  drainer sagas list --state compensation_failed
  drainer sagas list -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case filter.State != "" && !slices.Contains(operator.SagaStates, filter.State):
				return usagef(command, "--state: there is no such state; want one of %s", strings.Join(operator.SagaStates, ", "))
			case filter.Limit < 1:
				return usagef(command, "--limit must be at least 1")
			}
			return options.withConsole(command, func(console *operator.Console) error {
				limit, oneMore := filter.Limit, filter
				oneMore.Limit++
				found, err := console.Sagas(command.Context(), oneMore)
				if err != nil {
					return err
				}
				sagas, more := cutPage(found, limit)
				if err := options.print(command, sagas, sagaTable(sagas...)); err != nil || !more {
					return err
				}
				options.printMore(command, sagas[limit-1].AgentRunID, 0)
				return nil
			})
		},
	}
	timeFlags(command, "begun", &filter.Since, &filter.Until)
	command.Flags().StringVar(&filter.After, "cursor", "", "only those that follow this `run`: the end of a page says which")
	command.Flags().StringVar(&filter.State, "state", "", "only those in this `state`: "+strings.Join(operator.SagaStates, ", "))
	command.Flags().IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
}

func newSagasShow(options *options) *cobra.Command {
	var intent int64
	command := &cobra.Command{
		Use:   "show [RUN]",
		Short: "Show what an agent run did and undid, as it happened",
		Example: `  drainer sagas show run-001
  drainer sagas show --intent 36   # a step of it, or an undo
  drainer sagas show run-001 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return options.withSaga(command, args, intent, nil, options.printStory)
		},
	}
	command.Flags().Int64Var(&intent, "intent", 0, "the run of this intent or undo, by `ID`")
	return command
}

// withSaga changes the saga of the run that the command line names, unless change is nil, and then prints it.
func (o *options) withSaga(
	command *cobra.Command, args []string, intent int64, change func(*operator.Console, string) error, print func(*cobra.Command, *operator.SagaStory) error,
) error {
	if byID, byIntent := len(args) == 1, command.Flags().Changed("intent"); byID == byIntent {
		return usagef(command, "name the agent run by its id, or by --intent ID")
	}
	return o.withConsole(command, func(console *operator.Console) (err error) {
		var run string
		if len(args) == 1 {
			run = args[0]
		} else if run, err = console.RunOf(command.Context(), intent); err != nil {
			return reference{id: intent}.explain(err)
		}
		if change != nil {
			if err := change(console, run); err != nil {
				return err
			}
		}
		story, err := console.SagaOf(command.Context(), run)
		if err != nil {
			return err
		}
		return print(command, story)
	})
}

func (o *options) printStory(command *cobra.Command, story *operator.SagaStory) error {
	if o.output == jsonOutput {
		return printJSON(command.OutOrStdout(), story)
	}
	out := command.OutOrStdout()
	if err := sagaTable(story.Saga).print(out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := stepTable(story.Steps).print(out); err != nil {
		return err
	}
	if err := printHistory(out, story.Timeline, true, false); err != nil {
		return err
	}
	for _, wait := range story.WaitsFor {
		fmt.Fprintln(out, "\n"+waitNote(wait))
	}
	return nil
}

func stepTable(steps []operator.SagaStep) table {
	return tableOf([]string{"INTENT", "STEP", "TOOL", "STATUS", "UNDO", "UNDONE BY", "UNDO STATUS"}, steps, func(s operator.SagaStep) []any {
		row := []any{s.IntentID, s.StepID, s.ToolName, state(s.Status), "", "", ""}
		if s.Undo != nil {
			copy(row[4:], []any{s.Undo.IntentID, s.Undo.ToolName, state(s.Undo.Status)})
		}
		return row
	})
}

// waitNote names the intent for which a saga waits, and the command that ends the wait if a human is needed.
func waitNote(wait operator.Wait) string {
	note := fmt.Sprintf("waits for intent %d (%s)", wait.IntentID, wait.Status)
	if wait.Human {
		note += fmt.Sprintf(": drainer intents resolve %d --as completed or failed --reason TEXT", wait.IntentID)
	}
	return note
}

func sagaTable(sagas ...operator.Saga) table {
	heading := []string{"RUN", "STATE", "EPOCH", "CAUSE", "BEGUN", "ENDED", "BY", "REASON"}
	return tableOf(heading, sagas, func(s operator.Saga) []any {
		return []any{s.AgentRunID, state(s.State), s.Epoch, s.Cause, s.BegunAt, s.EndedAt, s.ChangedBy, s.Reason}
	})
}

// sagaChange describes one command that changes a saga.
type sagaChange struct {
	use, short, long, example string
	change                    func(*operator.Console, context.Context, string, operator.Signature) error
	print                     func(*options, *cobra.Command, *operator.SagaStory) error
}

func newSagasRetry(o *options) *cobra.Command {
	var undone []int64
	var newKeys bool
	var before *operator.SagaStory
	command := newSagaChange(o, sagaChange{
		use:   "retry [RUN]",
		short: "Let a saga that failed go on",
		long: `retry goes on where the compensation failed: undos that ended badly are sent again
under their keys, and steps without an undo are planned again. The run's incidents
are resolved.

The daemons' configuration decides how a step is undone. If you changed it, wait until
they have reloaded it.

With --new-key, undos that failed get new idempotency keys. What may have been applied
keeps its key. The output says which did.

With --undone you say which steps (compensation_failed) you have undone by hand.
They become compensated, their undos are not sent again, and the saga goes on with
the older steps.`,
		example: `  drainer sagas retry run-001 --reason "refund tool configured"
  drainer sagas retry --intent 36 --undone 36 --reason "refunded by hand, ticket 4711"`,
		change: func(c *operator.Console, ctx context.Context, run string, by operator.Signature) (err error) {
			if newKeys {
				if before, err = c.SagaOf(ctx, run); err != nil {
					return err
				}
			}
			return c.RetrySaga(ctx, run, undone, newKeys, by)
		},
		print: func(o *options, command *cobra.Command, story *operator.SagaStory) error {
			if !newKeys {
				return printSaga(o, command, story)
			}
			return o.printKeys(command, before, story, undone)
		},
	})
	command.Flags().Int64SliceVar(&undone, "undone", nil, "`intents` that you have undone by hand, separated by commas")
	command.Flags().BoolVar(&newKeys, "new-key", false, "send undos that failed under new idempotency keys, because their providers saved the refusal")
	return command
}

// rekeyedSaga adds which undos were sent again under new keys, and which kept theirs.
type rekeyedSaga struct {
	operator.Saga
	NewKeys  []int64 `json:"new_keys"`  // undos that failed
	KeptKeys []int64 `json:"kept_keys"` // those that may have been applied
}

func (o *options) printKeys(command *cobra.Command, before, after *operator.SagaStory, undone []int64) error {
	keys := map[int64]string{}
	for _, step := range before.Steps {
		if u := step.Undo; u != nil && u.FinishedAt != nil && u.Status != "completed" && !slices.Contains(undone, step.IntentID) {
			keys[u.IntentID] = u.IdempotencyKey
		}
	}
	rekeyed := rekeyedSaga{Saga: after.Saga, NewKeys: []int64{}, KeptKeys: []int64{}}
	for _, step := range after.Steps {
		if step.Undo == nil || keys[step.Undo.IntentID] == "" {
			continue
		}
		if id := step.Undo.IntentID; step.Undo.IdempotencyKey != keys[id] {
			rekeyed.NewKeys = append(rekeyed.NewKeys, id)
		} else {
			rekeyed.KeptKeys = append(rekeyed.KeptKeys, id)
		}
	}
	if err := o.print(command, rekeyed, sagaTable(after.Saga)); err != nil || o.output != tableOutput {
		return err
	}
	fmt.Fprintf(command.OutOrStdout(), "\nundos with a new key: %d\n", len(rekeyed.NewKeys))
	if len(rekeyed.KeptKeys) > 0 {
		fmt.Fprintf(command.OutOrStdout(), "with their old key, because they may have been applied: intents %s\n", idList(rekeyed.KeptKeys))
	}
	return nil
}

var sagaResolve = sagaChange{
	use:   "resolve [RUN]",
	short: "End a saga that people have settled outside",
	long: `resolve ends a saga: nothing more is undone by drainer, and completed steps are left
as they are. It says which. The run stays closed, and its incidents are resolved.

If you have undone one step by hand and the older ones are still to be undone, use
drainer sagas retry --undone instead.`,
	example: `  drainer sagas resolve run-001 --reason "refunded by hand, ticket 4711"
  drainer sagas resolve --intent 36 --reason "refunded by hand, ticket 4711"`,
	change: (*operator.Console).ResolveSaga,
	print:  printResolved,
}

var compensate = sagaChange{
	use:   "compensate [RUN]",
	short: "Take an agent run back although nothing failed",
	long: `compensate undoes what a run has completed, the newest step first. The run takes no
further step; what is in flight ends first.`,
	example: `  drainer compensate run-001 --reason "agent ordered twice"
  drainer compensate --intent 36 --reason "agent ordered twice"`,
	change: (*operator.Console).Compensate,
	print:  printSaga,
}

func newSagaChange(options *options, kind sagaChange) *cobra.Command {
	var by operator.Signature
	var intent int64
	command := &cobra.Command{
		Use: kind.use, Short: kind.short, Long: kind.long, Example: kind.example,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := sign(command, &by); err != nil {
				return err
			}
			return options.withSaga(command, args, intent, func(console *operator.Console, run string) error {
				return kind.change(console, command.Context(), run, by)
			}, func(command *cobra.Command, story *operator.SagaStory) error {
				return kind.print(options, command, story)
			})
		},
	}
	command.Flags().Int64Var(&intent, "intent", 0, "the run of this intent or undo, by `ID`")
	signatureFlags(command, &by)
	return command
}

func printSaga(o *options, command *cobra.Command, story *operator.SagaStory) error {
	return o.print(command, story.Saga, sagaTable(story.Saga))
}

// resolvedSaga adds the completed steps that were not undone.
type resolvedSaga struct {
	operator.Saga
	Standing []int64 `json:"left_standing"` // completed steps
}

func printResolved(o *options, command *cobra.Command, story *operator.SagaStory) error {
	resolved := resolvedSaga{story.Saga, story.Standing()}
	if err := o.print(command, resolved, sagaTable(story.Saga)); err != nil {
		return err
	}
	if o.output == tableOutput && len(resolved.Standing) > 0 {
		fmt.Fprintf(command.OutOrStdout(), "\nleft as they are: intents %s\n", idList(resolved.Standing))
	}
	return nil
}

func idList(ids []int64) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(texts, ", ")
}
