package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newEnqueue(options *options) *cobra.Command {
	var tuple dispatch.Tuple
	var payload string
	command := &cobra.Command{
		Use:   "enqueue",
		Short: "Commit one intent by hand",
		Long: `enqueue commits one intent in a transaction of its own. Agents call the SQL
function outbox.enqueue inside theirs instead.

The same four-tuple again creates nothing and prints the intent's status; with
another payload it is refused.`,
		Example: `  drainer enqueue --run run-001 --step step-1 --tool stripe/create_charge \
    --scope invoice_442 --payload '{"amount": 1200, "currency": "eur", "source": "tok_visa"}'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := tuple.Validate(); err != nil {
				return usagef(command, "%w", err)
			}
			body, err := readJSON("--payload", payload)
			if err != nil {
				return usagef(command, "%w", err)
			}
			return options.withConsole(command, func(console *operator.Console) error {
				receipt, err := console.Enqueue(command.Context(), tuple, body)
				if err != nil {
					return err
				}
				return options.print(command, receipt, table{
					[]string{"INTENT", "CREATED", "STATUS", "IDEMPOTENCY KEY"},
					[][]any{{receipt.IntentID, receipt.Created, receipt.Status, receipt.IdempotencyKey}},
				})
			})
		},
	}
	tupleFlags(command, &tuple)
	command.Flags().StringVar(&payload, "payload", "", "the intent's payload: `JSON`, or @FILE")
	for _, name := range []string{"run", "step", "tool", "scope", "payload"} {
		_ = command.MarkFlagRequired(name)
	}
	return command
}

func tupleFlags(command *cobra.Command, tuple *dispatch.Tuple) {
	flags := command.Flags()
	flags.StringVar(&tuple.AgentRunID, "run", "", "`id` of the agent run")
	flags.StringVar(&tuple.StepID, "step", "", "`id` of the step within the run")
	flags.StringVar(&tuple.ToolName, "tool", "", "`<provider>/<operation>`")
	flags.StringVar(&tuple.BusinessScope, "scope", "", "what the effect is about, e.g. an invoice's `id`")
}

// readJSON reads the value of a flag: JSON, or @FILE. Its errors never repeat the value.
func readJSON(flag, text string) (json.RawMessage, error) {
	value := []byte(text)
	if path, isFile := strings.CutPrefix(text, "@"); isFile {
		read, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		value = read
	}
	if !json.Valid(value) {
		return nil, fmt.Errorf("%s is not valid JSON; quote it for the shell, or use @FILE", flag)
	}
	return value, nil
}
