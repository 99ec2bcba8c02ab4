package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newRuns(options *options) *cobra.Command {
	command := group("runs", "Show an agent run, or stop it")
	command.AddCommand(newRunsShow(options), newRunsCancel(options))
	return command
}

func newRunsShow(options *options) *cobra.Command {
	var timeline bool
	command := &cobra.Command{
		Use:   "show RUN",
		Short: "Show the steps of an agent run and their undos",
		Long: `show lists the steps of a run, with their undos. With --timeline it draws a line for
each, from its enqueue to its end, and the undos below: what the console shows as
/runs/RUN. It shows the first 500 intents of a run and their first 5,000 attempts.`,
		Example: `  drainer runs show run-001
  drainer runs show run-001 --timeline
  drainer runs show run-001 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return options.withConsole(command, func(console *operator.Console) error {
				story, err := console.Story(command.Context(), args[0])
				if err != nil {
					return err
				}
				return options.printRun(command, story, timeline)
			})
		},
	}
	command.Flags().BoolVar(&timeline, "timeline", false, "draw each intent's time")
	return command
}

func (o *options) printRun(command *cobra.Command, story *operator.RunStory, timeline bool) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, story)
	}
	if story.Saga != nil {
		if err := sagaTable(*story.Saga).print(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	if timeline {
		s := screenOf(out)
		if err := s.write(drawTimeline(s, story)); err != nil {
			return err
		}
	} else if err := stepTable(story.Steps).print(out); err != nil {
		return err
	}
	if story.Truncated {
		fmt.Fprintln(out, "\nThis run is longer: these are its first steps and attempts.")
	}
	for _, wait := range story.WaitsFor {
		fmt.Fprintln(out, "\n"+waitNote(wait))
	}
	return nil
}

func newRunsCancel(options *options) *cobra.Command {
	var by operator.Signature
	var compensate bool
	command := &cobra.Command{
		Use:   "cancel RUN",
		Short: "Stop an agent run for good: it takes no further step",
		Long: `cancel is a kill switch. From its commit on the run can enqueue nothing more
(SQLSTATE OB002), and no worker claims its steps. Within a second every worker gives
back steps that it has claimed and not yet sent. Waiting steps are cancelled. Requests
in flight end and are recorded. Steps in doubt are looked up and never sent again. This
cannot be reverted.

Completed steps stay as they are. With --compensate they are undone, the newest first,
as if a step had failed. "drainer compensate" does that later.`,
		Example: `  drainer runs cancel run-001 --reason "agent misbehaves"
  drainer runs cancel run-001 --compensate --reason "agent ordered twice"
  drainer intents list --run run-001   # what became of each step`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := sign(command, &by); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				closed, err := console.CancelRun(command.Context(), args[0], compensate, by)
				if err != nil {
					return err
				}
				return options.print(command, closed, table{
					[]string{"RUN", "STATE", "CANCELLED", "IN PROGRESS", "UNSETTLED", "COMPLETED"},
					[][]any{{closed.AgentRunID, closed.State, closed.Cancelled, closed.InProgress, closed.Unsettled, closed.Completed}},
				})
			})
		},
	}
	signatureFlags(command, &by)
	command.Flags().BoolVar(&compensate, "compensate", false, "also undo what the run has completed")
	return command
}
