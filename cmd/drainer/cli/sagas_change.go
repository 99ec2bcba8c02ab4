package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// sagaChange is what differs between the commands that change one saga.
type sagaChange struct {
	use, short, long, example string
	change                    func(context.Context, *operator.Console, string, operator.Signature) error
	print                     func(*options, *cobra.Command, *operator.SagaStory) error
}

func newSagasRetry(options *options) *cobra.Command {
	var undone []int64
	command := newSagaChange(options, sagaChange{
		use:   "retry [RUN]",
		short: "Let a saga that failed go on",
		long: `retry goes on where the compensation failed: undos that ended badly are sent again
under their keys, and steps without an undo are planned anew. The run's incidents
are resolved.

The daemons' configuration decides how a step is undone. If you changed it, restart
them with the new file first.

With --undone you say which steps (compensation_failed) you have undone by hand.
They become compensated, their undos are not sent again, and the saga goes on with
the older steps.`,
		example: `  drainer sagas retry run-001 --reason "refund tool configured"
  drainer sagas retry --intent 36 --undone 36 --reason "refunded by hand, ticket 4711"`,
		change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
			return c.RetrySaga(ctx, run, undone, by)
		},
		print: printSaga,
	})
	command.Flags().Int64SliceVar(&undone, "undone", nil, "`intents` that you have undone by hand, separated by commas")
	return command
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
	change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
		return c.ResolveSaga(ctx, run, by)
	},
	print: printResolved,
}

var compensate = sagaChange{
	use:   "compensate [RUN]",
	short: "Take an agent run back although nothing failed",
	long: `compensate undoes what a run has completed, the newest step first. The run takes no
further step; what is in flight ends first.`,
	example: `  drainer compensate run-001 --reason "agent ordered twice"
  drainer compensate --intent 36 --reason "agent ordered twice"`,
	change: func(ctx context.Context, c *operator.Console, run string, by operator.Signature) error {
		return c.Compensate(ctx, run, by)
	},
	print: printSaga,
}

func newSagaChange(options *options, kind sagaChange) *cobra.Command {
	var by operator.Signature
	var intent int64
	command := &cobra.Command{
		Use: kind.use, Short: kind.short, Long: kind.long, Example: kind.example,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			named, err := readRun(command, args, intent)
			if err != nil {
				return err
			}
			if err := sign(command, &by); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				run, err := named.find(command.Context(), console)
				if err != nil {
					return err
				}
				if err := kind.change(command.Context(), console, run, by); err != nil {
					return err
				}
				story, err := console.SagaOf(command.Context(), run)
				if err != nil {
					return err
				}
				return kind.print(options, command, story)
			})
		},
	}
	runFlag(command, &intent)
	signatureFlags(command, &by)
	return command
}

func printSaga(o *options, command *cobra.Command, story *operator.SagaStory) error {
	return o.print(command, story.Saga, sagaHeading, sagaRows(story.Saga))
}

// resolvedSaga is a saga that was ended, and what nobody undid.
type resolvedSaga struct {
	operator.Saga
	Standing []int64 `json:"left_standing"` // completed steps
}

func printResolved(o *options, command *cobra.Command, story *operator.SagaStory) error {
	resolved := resolvedSaga{story.Saga, story.Standing()}
	if err := o.print(command, resolved, sagaHeading, sagaRows(story.Saga)); err != nil {
		return err
	}
	if o.output == table && len(resolved.Standing) > 0 {
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
