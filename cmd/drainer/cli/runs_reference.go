package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// runReference names one agent run: by its id, or by an intent of it, since a
// page names only that.
type runReference struct {
	run    string
	intent int64
}

func runFlag(command *cobra.Command, intent *int64) {
	command.Flags().Int64Var(intent, "intent", 0, "the run of this intent or undo, by `ID`")
}

func readRun(command *cobra.Command, args []string, intent int64) (runReference, error) {
	if named, byIntent := len(args) == 1, command.Flags().Changed("intent"); named == byIntent {
		return runReference{}, usagef(command, "name the agent run by its id, or by --intent ID")
	} else if named {
		return runReference{run: args[0]}, nil
	}
	return runReference{intent: intent}, nil
}

func (r runReference) find(ctx context.Context, console *operator.Console) (string, error) {
	if r.run != "" {
		return r.run, nil
	}
	run, err := console.RunOf(ctx, r.intent)
	return run, reference{id: r.intent}.explain(err)
}
