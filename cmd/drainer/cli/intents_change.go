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

// change describes one command that changes intents.
type change struct {
	usual  []string // the statuses that a bulk change selects without --status
	other  []string // further statuses that --status may name
	action func(*cobra.Command, *changing) (operator.Action, error)
	next   func([]operator.Verdict) string // the next step for the user after a change, or ""; may be nil
}

// changing is one run of such a command.
type changing struct {
	change
	options   *options
	tuple     dispatch.Tuple
	intent    reference          // the intent to change, if not bulk
	selection operator.Selection // the intents to change, if bulk
	signature operator.Signature
	yes       bool
	bulk      bool // many intents, and not a single one
}

func newChange(options *options, kind change) *cobra.Command {
	c := &changing{change: kind, options: options}
	command := &cobra.Command{Args: cobra.MaximumNArgs(1), RunE: c.run}
	tupleFlags(command, &c.tuple)
	flags := command.Flags()
	flags.StringSliceVar(&c.selection.Statuses, "status", kind.usual, "in bulk: those with this `status`: "+strings.Join(c.statuses(), ", "))
	_ = command.RegisterFlagCompletionFunc("status", oneOf(c.statuses()...))
	flags.StringVar(&c.selection.Provider, "provider", "", "in bulk: only this provider's, by `name`")
	flags.DurationVar(&c.selection.OlderThan, "older-than", 0, "in bulk: only those enqueued at least this long ago")
	flags.IntVar(&c.selection.Limit, "limit", 100, fmt.Sprintf("in bulk: at most this `many`, the oldest first; not over %d", operator.MaxSelection))
	flags.BoolVar(&c.yes, "yes", false, "in bulk: do it, instead of showing what would be done")
	signatureFlags(command, &c.signature)
	return command
}

func (c *changing) statuses() []string { return slices.Concat(c.usual, c.other) }

func (c *changing) run(command *cobra.Command, args []string) error {
	var err error
	if c.bulk, err = c.aim(command, args); err != nil {
		return err
	}
	if preview := c.bulk && !c.yes; !preview {
		if err := sign(command, &c.signature); err != nil {
			return err
		}
	}
	action, err := c.action(command, c)
	if err != nil {
		return err
	}
	if c.bulk {
		return c.changeMany(command, action)
	}
	return c.changeOne(command, action)
}

// aim decides whether the command line names one intent or selects many. --run alone is a filter. With another part
// of a key, it is a part of the key.
func (c *changing) aim(command *cobra.Command, args []string) (bulk bool, err error) {
	if err := filled(command, "provider", "run", "step", "tool", "scope"); err != nil {
		return false, err
	}
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

// checkSelection reports a mistyped filter, which would otherwise select nothing.
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
		// Show also the changes that were committed before an error.
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

// changes is the output of the commands that change intents.
type changes struct {
	DryRun  bool               `json:"dry_run"`
	More    bool               `json:"more"` // the limit left some out
	Intents []operator.Verdict `json:"intents"`

	bulk bool // selected by a filter, not named
}

func (c changes) refused() (refused int) {
	for _, verdict := range c.Intents {
		if verdict.Refused != "" {
			refused++
		}
	}
	return refused
}

func (o *options) printChanges(command *cobra.Command, c changes) error {
	if len(c.Intents) == 0 && o.output == tableOutput {
		fmt.Fprintln(command.OutOrStdout(), "No selected intent can change. Settled intents of a compensated run stay as they are: see drainer intents list.")
		return nil
	}
	if c.Intents == nil {
		c.Intents = []operator.Verdict{} // an empty list in JSON, and not null
	}
	after := "AFTER"
	if c.DryRun {
		after = "WOULD BE"
	}
	heading := []string{"INTENT", "RUN", "STEP", "TOOL", "SCOPE", "BEFORE", after, "REFUSED BECAUSE"}
	if err := o.print(command, c, tableOf(heading, c.Intents, func(v operator.Verdict) []any {
		return []any{v.IntentID, v.AgentRunID, v.StepID, v.ToolName, v.BusinessScope, state(v.Before), state(v.After), v.Refused}
	})); err != nil {
		return err
	}
	if o.output != tableOutput {
		return nil
	}
	for _, note := range c.notes() {
		fmt.Fprintln(command.OutOrStdout(), "\n"+note)
	}
	return nil
}

// notes summarises a change for the user.
func (c changes) notes() (notes []string) {
	if c.More {
		notes = append(notes, "There are more than --limit lets through.")
	}
	refused := c.refused()
	switch changed := len(c.Intents) - refused; {
	case c.DryRun:
		notes = append(notes, fmt.Sprintf("%d would change, %d would be refused. Nothing has changed yet: to do it, add --yes and --reason TEXT.", changed, refused))
	case c.bulk:
		notes = append(notes, fmt.Sprintf("%d done, %d refused.", changed, refused))
	}
	return notes
}

func newIntentsRetry(options *options) *cobra.Command {
	var retry operator.Retry
	var now bool
	command := newChange(options, change{
		usual: []string{"failed", "unknown"},
		other: []string{"cancelled", "pending"},
		action: func(command *cobra.Command, c *changing) (_ operator.Action, err error) {
			if now {
				if !command.Flags().Changed("status") {
					c.selection.Statuses = []string{"pending", "unknown"} // an unknown intent may wait for a lookup
				}
				c.selection.Waiting = true
				return operator.BringForward{Scheduled: !c.bulk}, nil
			}
			retry.PolicyOf, err = options.policies(command)
			return retry, err
		},
	})
	command.Use = "retry [INTENT]"
	command.Short = "Put failed and unknown intents back into the queue"
	command.Long = `retry puts settled intents back into the queue: due now, with all their tries, and
under the same idempotency key. It is refused for a run that is being compensated.

What may have been applied already is repeated only where that is safe: the
configuration says that repeating does no harm, or that the provider still
remembers the key (until half of its ttl is over). Else find out what happened and
resolve the intent, or accept a second effect with --may-duplicate.

With --new-key it is sent under a new idempotency key. Many providers save a refusal
with the key and repeat it, so that a retry under the same key brings the same 4xx
although its cause is gone. That is for failed intents: nothing of them was applied.
Of an unknown one it takes --may-duplicate too, and what was sent under the old key
may still arrive late. The history shows both keys.

With --now, intents that wait in the queue become due at once, undos too: a provider
asked for a long wait, or an agent for a late start. Their tries, their key and what
may have been applied stay as they are. What an agent asked to be sent later is sent
before its time only if it is named alone. A lookup that waits for the last send to
be over keeps waiting.

` + bulkHelp
	command.Example = `  drainer intents retry 42 --reason "card was unblocked" --config drainer.yaml

  # all that a provider refused in its outage: look first, then do it
  drainer intents retry --status failed --provider stripe --config drainer.yaml
  drainer intents retry --status failed --provider stripe --config drainer.yaml --yes --reason "outage is over"

  # it is unknown whether the mail went out, and twice is better than never
  drainer intents retry 43 --may-duplicate --reason "customer says it never came"

  # the provider saved its 402 and would repeat it
  drainer intents retry 42 --new-key --reason "customer has a new card"

  # a provider asked for a wait of a day, and works again
  drainer intents retry --now --provider stripe --yes --reason "stripe is back"`
	command.Flags().BoolVar(&retry.MayDuplicate, "may-duplicate", false, "accept a second effect of intents in doubt")
	command.Flags().BoolVar(&now, "now", false, "only make waiting intents due")
	command.Flags().BoolVar(&retry.NewKey, "new-key", false, "send it under a new idempotency key, because its provider saved the refusal")
	command.MarkFlagsMutuallyExclusive("now", "may-duplicate")
	command.MarkFlagsMutuallyExclusive("now", "new-key")
	return command
}

// policies returns the tools' policies of the configuration, or nil if there is none.
func (o *options) policies(command *cobra.Command) (operator.PolicyOf, error) {
	loaded, err := o.givenPolicies(command)
	if loaded == nil {
		return nil, err
	}
	return loaded.Policy, nil
}

func newIntentsCancel(options *options) *cobra.Command {
	command := newChange(options, change{
		usual:  []string{"pending"},
		action: func(*cobra.Command, *changing) (operator.Action, error) { return operator.Cancel{}, nil },
	})
	command.Use = "cancel [INTENT]"
	command.Short = "Take intents that wait out of the queue"
	command.Long = `cancel ends intents that wait in the queue. They keep their key: enqueueing it
again changes nothing, and retry brings them back.

It is refused where an attempt may have been applied, because cancelled says that
there was no effect; such an intent is resolved. One in progress is refused as well:
wait until its attempt has ended.

` + bulkHelp
	command.Example = `  drainer intents cancel 42 --reason "customer withdrew the order"

  # all that a run still has waiting: look first, then do it
  drainer intents cancel --run run-001
  drainer intents cancel --run run-001 --yes --reason "agent misbehaves"`
	return command
}

func newIntentsResolve(options *options) *cobra.Command {
	var as, providerRef string
	command := newChange(options, change{
		usual: []string{"unknown"},
		other: []string{"failed", "pending"},
		action: func(command *cobra.Command, _ *changing) (operator.Action, error) {
			resolve := operator.Resolve{As: dispatch.Status(as), ProviderRef: providerRef}
			if err := resolve.Validate(); err != nil {
				return nil, usagef(command, "--as, --provider-ref: %w", err)
			}
			return resolve, nil
		},
		next: compensateNote,
	})
	command.Use = "resolve [INTENT]"
	command.Short = "Settle intents by what you found out at their provider"
	command.Long = `resolve settles an intent whose outcome is unknown: look at the provider, then say
whether the effect happened. It applies to unknown intents, to failed ones that did have
their effect after all, and to those that wait and may have been applied, which it
takes out of the queue. A resolution can be corrected by another one. What a
provider reported as completed stays completed.

A step resolved as failed does not compensate its run; drainer compensate does.

` + bulkHelp
	command.Example = `  drainer intents resolve 42 --as completed --provider-ref ch_3PqL --reason "found in the provider's log"
  drainer intents resolve 43 --as failed --reason "no such charge at the provider"

  # all that a provider lost: look first, then do it
  drainer intents resolve --as failed --provider stripe --older-than 24h
  drainer intents resolve --as failed --provider stripe --older-than 24h --yes --reason "provider confirmed the loss"`
	flags := command.Flags()
	flags.StringVar(&as, "as", "", "what happened: completed or failed")
	flags.StringVar(&providerRef, "provider-ref", "", "the effect's `id` at the provider, if it completed")
	_ = command.MarkFlagRequired("as")
	return command
}

// compensateNote tells that a step resolved as failed does not compensate its run. A step that fails in the engine
// does.
func compensateNote(verdicts []operator.Verdict) string {
	var stay []operator.Verdict
	for _, v := range verdicts {
		if v.Refused == "" && v.After == string(dispatch.StatusFailed) && v.Saga == "" && !v.IsUndo() {
			stay = append(stay, v)
		}
	}
	switch len(stay) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("its run is not compensated by itself: drainer compensate --intent %d", stay[0].IntentID)
	}
	return "their runs are not compensated by themselves: drainer compensate RUN"
}
