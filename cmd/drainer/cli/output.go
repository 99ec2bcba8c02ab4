package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	tableOutput outputFormat = "table"
	jsonOutput  outputFormat = "json"
)

func (f *outputFormat) Set(text string) error {
	switch format := outputFormat(text); format {
	case tableOutput, jsonOutput:
		*f = format
		return nil
	}
	return fmt.Errorf("want table or json")
}

func (f *outputFormat) String() string { return string(*f) }

func (f *outputFormat) Type() string { return "format" }

// print writes the value as JSON, or the table.
func (o *options) print(command *cobra.Command, value any, shown table) error {
	if o.output == jsonOutput {
		return printJSON(command.OutOrStdout(), value)
	}
	return shown.print(command.OutOrStdout())
}

func printJSON(to io.Writer, value any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}

// printable writes out what would move the cursor, or command the terminal:
// agents choose the names of tools and runs.
func printable(text string) string {
	if !strings.ContainsFunc(text, isUnprintable) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if isUnprintable(r) {
			shown.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		shown.WriteRune(r)
	}
	return shown.String()
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

func signatureFlags(command *cobra.Command, signature *operator.Signature) {
	flags := command.Flags()
	flags.StringVar(&signature.Reason, "reason", "", "why, for the history: `text`")
	flags.StringVar(&signature.Operator, "operator", "", "who, for the history: `name` (default: $USER, then the system's)")
}

// sign completes a signature, or says which flag is missing.
func sign(command *cobra.Command, signature *operator.Signature) error {
	signature.Operator = cmp.Or(strings.TrimSpace(signature.Operator), strings.TrimSpace(os.Getenv("USER")), systemUser())
	var missing []error
	if signature.Operator == "" {
		missing = append(missing, errors.New("--operator is empty, and neither $USER nor the system has your name; add --operator NAME"))
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

// systemUser is empty in a container whose user has no entry in /etc/passwd.
func systemUser() string {
	current, err := user.Current()
	if err != nil {
		return ""
	}
	return current.Username
}
