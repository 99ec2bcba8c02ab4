package cli

import (
	"cmp"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func signatureFlags(command *cobra.Command, signature *operator.Signature) {
	flags := command.Flags()
	flags.StringVar(&signature.Reason, "reason", "", "why, for the history: `text`")
	flags.StringVar(&signature.Operator, "operator", "", "who, for the history: `name` (default: $USER)")
}

// sign completes a signature, or says which flag is missing.
func sign(command *cobra.Command, signature *operator.Signature) error {
	signature.Operator = cmp.Or(strings.TrimSpace(signature.Operator), strings.TrimSpace(os.Getenv("USER")))
	var missing []error
	if signature.Operator == "" {
		missing = append(missing, errors.New("--operator is empty and $USER is not set; add --operator NAME"))
	}
	if strings.TrimSpace(signature.Reason) == "" {
		missing = append(missing, errors.New("--reason is empty; add --reason TEXT"))
	}
	if len(missing) > 0 {
		return usagef(command, "%w", errors.Join(missing...))
	}
	if err := signature.Validate(); err != nil {
		return usagef(command, "--operator, --reason: %w", err)
	}
	return nil
}
