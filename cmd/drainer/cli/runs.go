package cli

import (
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newRuns(options *options) *cobra.Command {
	command := group("runs", "Stop an agent run")
	command.AddCommand(newRunsCancel(options))
	return command
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
