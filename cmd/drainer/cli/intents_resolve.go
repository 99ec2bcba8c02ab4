package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIntentsResolve(options *options) *cobra.Command {
	var as, providerRef string
	command := newChange(options, change{
		usual: []string{"unknown"},
		other: []string{"failed", "pending"},
		action: func(command *cobra.Command) (operator.Action, error) {
			resolve := operator.Resolve{As: dispatch.Status(as), ProviderRef: providerRef}
			if err := resolve.Validate(); err != nil {
				return nil, usagef(command, "--as, --provider-ref: %w", err)
			}
			return resolve, nil
		},
		next: goBackNote,
	})
	command.Use = "resolve [INTENT]"
	command.Short = "Settle intents by what you found out at their provider"
	command.Long = `resolve settles what drainer cannot tell: look at the provider, then say whether
the effect happened. It applies to unknown intents, to failed ones that did have
their effect after all, and to those that wait and may have been applied, which it
takes out of the queue. A resolution can be corrected by another one. What a
provider reported as completed stays completed.

A step resolved as failed does not take its run back; drainer compensate does.

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

// goBackNote reminds of what the engine does by itself, and a human's word does
// not: that a step failed takes its run back.
func goBackNote(verdicts []operator.Verdict) string {
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
		return fmt.Sprintf("its run does not go back by itself: drainer compensate --intent %d", stay[0].IntentID)
	}
	return "their runs do not go back by themselves: drainer compensate RUN"
}
