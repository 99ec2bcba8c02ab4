package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newSagas(options *options) *cobra.Command {
	command := group("sagas", "List agent runs that go back, show one, retry or resolve it")
	command.AddCommand(
		newSagasList(options),
		newSagasShow(options),
		newSagasRetry(options),
		newSagaChange(options, sagaResolve),
	)
	return command
}

func newSagasList(options *options) *cobra.Command {
	var state string
	var limit int
	command := &cobra.Command{
		Use:   "list",
		Short: "List sagas, the newest first",
		Example: `  drainer sagas list --state compensation_failed
  drainer sagas list -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case state != "" && !slices.Contains(operator.SagaStates, state):
				return usagef(command, "--state: there is no such state; want one of %s", strings.Join(operator.SagaStates, ", "))
			case limit < 1:
				return usagef(command, "--limit must be at least 1")
			}
			return options.withConsole(command, func(console *operator.Console) error {
				sagas, err := console.Sagas(command.Context(), state, limit)
				if err != nil {
					return err
				}
				return options.print(command, sagas, sagaHeading, sagaRows(sagas...))
			})
		},
	}
	command.Flags().StringVar(&state, "state", "", "only those in this `state`: "+strings.Join(operator.SagaStates, ", "))
	command.Flags().IntVar(&limit, "limit", 50, "at most this `many`")
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
			named, err := readRun(command, args, intent)
			if err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				run, err := named.find(command.Context(), console)
				if err != nil {
					return err
				}
				story, err := console.SagaOf(command.Context(), run)
				if err != nil {
					return err
				}
				return options.printStory(command, story)
			})
		},
	}
	runFlag(command, &intent)
	return command
}

func (o *options) printStory(command *cobra.Command, story *operator.SagaStory) error {
	if o.output == jsonText {
		return printJSON(command.OutOrStdout(), story)
	}
	out := command.OutOrStdout()
	for _, part := range []struct {
		heading []string
		rows    [][]string
	}{
		{sagaHeading, sagaRows(story.Saga)},
		{[]string{""}, nil},
		{[]string{"INTENT", "STEP", "TOOL", "STATUS", "UNDO", "UNDONE BY", "UNDO STATUS"}, stepRows(story.Steps)},
		{[]string{""}, nil},
		{[]string{"FINISHED", "INTENT", "ATTEMPT", "OUTCOME", "STATUS", "ERROR", "BY", "REASON"}, eventRows(story.Timeline)},
	} {
		if err := printTable(out, part.heading, part.rows); err != nil {
			return err
		}
	}
	for _, wait := range story.WaitsFor {
		fmt.Fprintln(out, "\n"+waitNote(wait))
	}
	return nil
}

// waitNote says what ends the waiting, if that takes a human.
func waitNote(wait operator.Wait) string {
	note := fmt.Sprintf("waits for intent %d (%s)", wait.IntentID, wait.Status)
	if wait.Human {
		note += fmt.Sprintf(": drainer intents resolve %d --as completed or failed --reason TEXT", wait.IntentID)
	}
	return note
}

var sagaHeading = []string{"RUN", "STATE", "EPOCH", "CAUSE", "BEGUN", "ENDED", "BY", "REASON"}

func sagaRows(sagas ...operator.Saga) [][]string {
	rows := make([][]string, len(sagas))
	for i, s := range sagas {
		rows[i] = []string{s.AgentRunID, s.State, strconv.Itoa(s.Epoch), number(s.Cause), moment(&s.BegunAt), moment(s.EndedAt), text(s.ChangedBy), text(s.Reason)}
	}
	return rows
}

func stepRows(steps []operator.SagaStep) [][]string {
	rows := make([][]string, len(steps))
	for i, s := range steps {
		rows[i] = []string{strconv.FormatInt(s.IntentID, 10), s.StepID, s.ToolName, s.Status, "", "", ""}
		if s.Undo != nil {
			copy(rows[i][4:], []string{strconv.FormatInt(s.Undo.IntentID, 10), s.Undo.ToolName, s.Undo.Status})
		}
	}
	return rows
}

func eventRows(timeline []operator.Event) [][]string {
	rows := make([][]string, len(timeline))
	for i, e := range timeline {
		rows[i] = []string{
			moment(&e.FinishedAt), strconv.FormatInt(e.IntentID, 10), strconv.Itoa(e.Attempt.Attempt), what(e.Attempt), e.Status,
			text(e.Error), actor(e.Attempt), text(e.Reason),
		}
	}
	return rows
}

func number(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}
