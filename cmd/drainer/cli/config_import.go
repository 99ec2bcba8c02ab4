package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/contract/providerblock"
)

func newConfigImport() *cobra.Command {
	var provider string
	command := &cobra.Command{
		Use:   "import SPEC",
		Short: "Write a provider's configuration from its OpenAPI document",
		Long: `import turns what an OpenAPI document declares with x-agent-idempotency into a
configuration of one provider: where it lives, where it wants the key, and a tool
for each operation, named by its operationId. The payload of a tool holds the
required parameters by name, and beside them the fields of the body.

An operation that violates the extension, or that drainer cannot send as it is
documented, is left out, named on standard error, and makes the exit code 1.
What no document says is yours to add: credentials, and http.response.ref.`,
		Example: `  drainer config import openapi.yaml --provider billing > drainer.yaml
  drainer config validate --config drainer.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if provider == "" || strings.Contains(provider, "/") {
				return usagef(command, "--provider is what stands before the slash of a tool name; it is neither empty nor has a slash")
			}
			document, err := manifest.Load(args[0])
			if err != nil {
				return err
			}
			return printBlock(command, document, provider)
		},
	}
	command.Flags().StringVar(&provider, "provider", "", "`name` of the provider: what stands before the slash of a tool name")
	_ = command.MarkFlagRequired("provider")
	return command
}

func printBlock(command *cobra.Command, document *manifest.Document, provider string) error {
	block, skipped := providerblock.From(document, provider)
	for _, operation := range skipped {
		fmt.Fprintf(command.ErrOrStderr(), "left out: %s %s: %s\n", operation.Method, operation.Path, operation.Why)
	}
	if block.Empty() {
		return errors.New("no operation could be imported; declare " + manifest.Extension + " at those that agents call")
	}
	content, err := block.YAML()
	if err != nil {
		return err
	}
	if _, err := command.OutOrStdout().Write(content); err != nil {
		return fmt.Errorf("printing the provider block: %w", err)
	}
	if len(skipped) > 0 {
		return fmt.Errorf("operations left out: %d", len(skipped))
	}
	return nil
}
