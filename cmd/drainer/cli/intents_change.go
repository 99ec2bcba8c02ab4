package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

const bulkHelp = `Name one intent by its id, or by --run, --step, --tool and --scope. Or choose many by
--status, --provider, --run and --older-than: that shows what would be done and what
would be refused, and changes nothing until --yes says so. Every change needs a
--reason, which stays in the intent's history with the operator's name.

It exits with 1 if any intent was refused.`

// change is what differs between the commands that change intents.
type change struct {
	usual  []string // the statuses that a bulk change takes without --status
	other  []string // those that it takes with it
	action func(*cobra.Command) (operator.Action, error)
	next   func([]operator.Verdict) string // what is left to do after a change; may be nil
}

// changing is one run of such a command.
type changing struct {
	change
	options   *options
	tuple     dispatch.Tuple
	intent    reference          // what to change, if it is one
	selection operator.Selection // and if it is many
	signature operator.Signature
	yes       bool
}

func newChange(options *options, kind change) *cobra.Command {
	c := &changing{change: kind, options: options}
	command := &cobra.Command{Args: cobra.MaximumNArgs(1), RunE: c.run}
	tupleFlags(command, &c.tuple)
	flags := command.Flags()
	flags.StringSliceVar(&c.selection.Statuses, "status", kind.usual, "in bulk: those with this `status`: "+strings.Join(c.statuses(), ", "))
	flags.StringVar(&c.selection.Provider, "provider", "", "in bulk: only this provider's, by `name`")
	flags.DurationVar(&c.selection.OlderThan, "older-than", 0, "in bulk: only those enqueued at least this long ago")
	flags.IntVar(&c.selection.Limit, "limit", 100, fmt.Sprintf("in bulk: at most this `many`, the oldest first; not over %d", operator.MaxSelection))
	flags.BoolVar(&c.yes, "yes", false, "in bulk: do it, instead of showing what would be done")
	signatureFlags(command, &c.signature)
	return command
}

func (c *changing) statuses() []string { return slices.Concat(c.usual, c.other) }

func (c *changing) run(command *cobra.Command, args []string) error {
	bulk, err := c.aim(command, args)
	if err != nil {
		return err
	}
	if preview := bulk && !c.yes; !preview {
		if err := sign(command, &c.signature); err != nil {
			return err
		}
	}
	action, err := c.action(command)
	if err != nil {
		return err
	}
	if bulk {
		return c.changeMany(command, action)
	}
	return c.changeOne(command, action)
}

// aim tells one intent from many: a run alone is a filter, and with anything
// else of a key it is a part of it.
func (c *changing) aim(command *cobra.Command, args []string) (bulk bool, err error) {
	filters := slices.ContainsFunc([]string{"status", "provider", "older-than"}, command.Flags().Changed)
	runAlone := c.tuple != (dispatch.Tuple{}) && c.tuple == (dispatch.Tuple{AgentRunID: c.tuple.AgentRunID})
	one := len(args) > 0 || (c.tuple != (dispatch.Tuple{}) && !runAlone)
	switch {
	case one && filters:
		return false, usagef(command, "name one intent, or choose many by a filter, not both")
	case one:
		c.intent, err = readReference(command, args, c.tuple)
		return false, err
	case !filters && !runAlone:
		return false, usagef(command, "name an intent by its id or its key, or choose many by --status, --provider, --run or --older-than")
	}
	return true, c.checkSelection(command)
}

// checkSelection keeps a typo from passing for nothing to do.
func (c *changing) checkSelection(command *cobra.Command) error {
	c.selection.Run = c.tuple.AgentRunID
	for _, status := range c.selection.Statuses {
		if !slices.Contains(c.statuses(), status) {
			return usagef(command, "--status: this applies to intents that are %s only", strings.Join(c.statuses(), ", "))
		}
	}
	switch {
	case len(c.selection.Statuses) == 0:
		return usagef(command, "--status is empty; want one of %s", strings.Join(c.statuses(), ", "))
	case c.selection.Limit < 1 || c.selection.Limit > operator.MaxSelection:
		return usagef(command, "--limit must be from 1 to %d", operator.MaxSelection)
	case c.selection.OlderThan < 0:
		return usagef(command, "--older-than must not be negative")
	}
	return nil
}

func (c *changing) changeOne(command *cobra.Command, action operator.Action) error {
	return c.options.withConsole(command, func(console *operator.Console) error {
		ctx := command.Context()
		intent, err := c.intent.find(ctx, console)
		if err != nil {
			return err
		}
		verdicts, err := console.Change(ctx, action, c.signature, []int64{intent})
		switch {
		case err != nil:
			return err
		case len(verdicts) == 0:
			return c.intent.explain(operator.ErrNotFound)
		case verdicts[0].Refused != "":
			return fmt.Errorf("intent %d stays %s: %s", intent, verdicts[0].Before, verdicts[0].Refused)
		}
		return c.report(command, changes{Intents: verdicts})
	})
}

func (c *changing) changeMany(command *cobra.Command, action operator.Action) error {
	return c.options.withConsole(command, func(console *operator.Console) error {
		ctx := command.Context()
		intents, more, err := console.Select(ctx, c.selection)
		if err != nil {
			return err
		}
		done := changes{DryRun: !c.yes, More: more, bulk: true}
		if c.yes {
			done.Intents, err = console.Change(ctx, action, c.signature, intents)
		} else {
			done.Intents, err = console.Preview(ctx, action, intents)
		}
		// What was committed before an error is shown as well.
		if err := errors.Join(err, c.report(command, done)); err != nil {
			return err
		}
		if refused := done.refused(); refused > 0 && c.yes {
			return fmt.Errorf("%d of %d intents were refused; the list says why", refused, len(done.Intents))
		}
		return nil
	})
}

func (c *changing) report(command *cobra.Command, done changes) error {
	if err := c.options.printChanges(command, done); err != nil {
		return err
	}
	if c.next == nil || done.DryRun {
		return nil
	}
	if next := c.next(done.Intents); next != "" {
		fmt.Fprintln(command.ErrOrStderr(), next)
	}
	return nil
}
