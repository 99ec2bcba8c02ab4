package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// changes is what the commands that change intents print.
type changes struct {
	DryRun  bool               `json:"dry_run"`
	More    bool               `json:"more"` // the limit left some out
	Intents []operator.Verdict `json:"intents"`

	bulk bool // rather than one that was named
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
	if len(c.Intents) == 0 && o.output == table {
		fmt.Fprintln(command.OutOrStdout(), "There are no such intents that could change. What a run has settled that went back stays as it is: see drainer intents list.")
		return nil
	}
	if c.Intents == nil {
		c.Intents = []operator.Verdict{} // an empty list, for programs
	}
	after := "AFTER"
	if c.DryRun {
		after = "WOULD BE"
	}
	if err := o.print(command, c, []string{"INTENT", "RUN", "STEP", "TOOL", "SCOPE", "BEFORE", after, "REFUSED BECAUSE"}, changeRows(c.Intents)); err != nil {
		return err
	}
	if o.output != table {
		return nil
	}
	for _, note := range c.notes() {
		fmt.Fprintln(command.OutOrStdout(), "\n"+note)
	}
	return nil
}

// notes sum up a bulk change for a reader.
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

func changeRows(verdicts []operator.Verdict) [][]string {
	rows := make([][]string, len(verdicts))
	for i, v := range verdicts {
		rows[i] = []string{
			strconv.FormatInt(v.IntentID, 10), v.AgentRunID, v.StepID, v.ToolName, v.BusinessScope, v.Before, v.After, v.Refused,
		}
	}
	return rows
}
