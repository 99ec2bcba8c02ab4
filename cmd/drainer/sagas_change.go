package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// sagaChange is what differs between the commands that change one saga.
type sagaChange struct {
	use, short, long, example string
	change                    func(context.Context, *operator.Console, string, operator.Signature) error
}

var sagaRetry = sagaChange{
	use:   "retry RUN",
	short: "Let a saga that failed go on",
	long: `retry goes on where the compensation failed: undos that ended badly are sent again
under their keys, and steps without an undo are planned anew, with what the
configuration says now. The run's incidents are resolved.`,
	example: `  drainer sagas retry run-001 --reason "refund tool configured"`,
	change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
		return c.RetrySaga(ctx, run, by)
	},
}

var sagaResolve = sagaChange{
	use:   "resolve RUN",
	short: "End a saga that people have settled outside",
	long: `resolve ends a saga: nothing more is undone by drainer. The run stays closed, and its
incidents are resolved.`,
	example: `  drainer sagas resolve run-001 --reason "refunded by hand, ticket 4711"`,
	change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
		return c.ResolveSaga(ctx, run, by)
	},
}

var compensate = sagaChange{
	use:   "compensate RUN",
	short: "Take an agent run back although nothing failed",
	long: `compensate undoes what a run has completed, the newest step first. The run takes no
further step; what is in flight ends first.`,
	example: `  drainer compensate run-001 --reason "agent ordered twice"`,
	change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
		return c.Compensate(ctx, run, by)
	},
}

func newSagaChange(options *options, kind sagaChange) *cobra.Command {
	var by operator.Signature
	command := &cobra.Command{
		Use: kind.use, Short: kind.short, Long: kind.long, Example: kind.example,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := sign(command, &by); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				if err := kind.change(command.Context(), console, args[0], by); err != nil {
					return err
				}
				story, err := console.SagaOf(command.Context(), args[0])
				if err != nil {
					return err
				}
				return options.print(command, story.Saga, sagaHeading, sagaRows(story.Saga))
			})
		},
	}
	signatureFlags(command, &by)
	return command
}
