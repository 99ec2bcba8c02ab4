package cli

import (
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIntentsCancel(options *options) *cobra.Command {
	command := newChange(options, change{
		usual:  []string{"pending"},
		action: func(*cobra.Command) (operator.Action, error) { return operator.Cancel{}, nil },
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
  drainer intents cancel --run run-001 --yes --reason "agent went astray"`
	return command
}
