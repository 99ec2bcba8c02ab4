package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
)

func newConfig(options *options) *cobra.Command {
	command := group("config", "Check a configuration, print its schema, or import a provider")
	command.AddCommand(newConfigValidate(options), newConfigSchema(options), newConfigImport())
	return command
}

func newConfigValidate(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Find every mistake in a configuration, with file, line and column",
		Long: `validate reads a configuration as run does: strictly, with its secrets, and
with every adapter built. It connects to nothing. A valid one is summed up, one
line a tool; the mistakes of another go to standard error, and it exits with 3.

A non_idempotent tool is safe for agents once its configuration says how to look
an effect up, what undoes it, and for how long: lookup, compensate_with and
reversal_window. One that lacks any of them is valid, and a warning. So is a tool
that acts and has neither compensate_with nor compensation: none, because a run
that used it cannot be compensated.`,
		Example: `  drainer config validate --config drainer.yaml
  drainer config validate --config drainer.yaml -o json | jq '.errors[]'

  # fail a build that lets agents use an unsafe tool
  drainer config validate --config drainer.yaml -o json | jq -e 'all(.tools[]; .agent_safe)'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := options.loadConfig(command)
			if err != nil {
				return errors.Join(err, options.printInvalid(command, err))
			}
			return options.printValid(command, loaded)
		},
	}
}

func newConfigSchema(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration, for editors",
		Example: `  drainer config schema > drainer.schema.json

  # then, as the first line of drainer.yaml:
  # yaml-language-server: $schema=./drainer.schema.json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			schema, err := config.Schema(options.registry)
			if err != nil {
				return err
			}
			if _, err := command.OutOrStdout().Write(schema); err != nil {
				return fmt.Errorf("printing the schema: %w", err)
			}
			return nil
		},
	}
}

// validation is what `config validate -o json` prints.
type validation struct {
	Valid  bool            `json:"valid"`
	Tools  []toolSummary   `json:"tools,omitempty"`
	Errors []*config.Error `json:"errors,omitempty"`
}

type toolSummary struct {
	Tool        string   `json:"tool"`
	Class       string   `json:"class"`
	KeyTTL      string   `json:"key_ttl,omitempty"`
	MaxAttempts int      `json:"max_attempts"`
	Timeout     string   `json:"timeout"`
	Undo        string   `json:"compensation,omitempty"` // a tool, none or missing; empty where none is needed
	AgentSafe   bool     `json:"agent_safe"`
	Missing     []string `json:"missing,omitempty"` // the fields that would make it safe
}

const missingUndo = "missing"

func (o *options) printValid(command *cobra.Command, loaded *config.Config) error {
	tools := summarize(loaded)
	rows := make([][]string, len(tools))
	for i, tool := range tools {
		rows[i] = []string{tool.Tool, tool.Class, tool.KeyTTL, strconv.Itoa(tool.MaxAttempts), tool.Timeout, tool.Undo, tool.safety()}
	}
	heading := []string{"TOOL", "CLASS", "KEY TTL", "MAX ATTEMPTS", "TIMEOUT", "COMPENSATION", "AGENT SAFE"}
	if err := o.print(command, validation{Valid: true, Tools: tools}, heading, rows); err != nil {
		return err
	}
	warn(command.ErrOrStderr(), tools)
	return nil
}

func (t toolSummary) safety() string {
	if t.AgentSafe {
		return "yes"
	}
	return "no, lacks " + strings.Join(t.Missing, ", ")
}

func warn(to io.Writer, tools []toolSummary) {
	unsafe, silent := 0, 0
	for _, tool := range tools {
		if !tool.AgentSafe {
			unsafe++
		}
		if tool.Undo == missingUndo {
			silent++
		}
	}
	if unsafe > 0 {
		fmt.Fprintf(to, "drainer: warning: tools that are not safe for agents: %d of %d\n", unsafe, len(tools))
	}
	if silent > 0 {
		fmt.Fprintf(to, "drainer: warning: tools with neither compensate_with nor compensation: none: %d of %d\n", silent, len(tools))
	}
}

// printInvalid gives a program the mistakes in a form that it can read.
func (o *options) printInvalid(command *cobra.Command, err error) error {
	var invalid *config.InvalidError
	if o.output != jsonText || !errors.As(err, &invalid) {
		return nil
	}
	return printJSON(command.OutOrStdout(), validation{Errors: invalid.Problems})
}

func summarize(loaded *config.Config) []toolSummary {
	var tools []toolSummary
	silent := loaded.Uncompensated()
	for name, policy := range loaded.Tools() {
		missing := config.MissingSafeguards(policy)
		tools = append(tools, toolSummary{
			Tool:        name,
			Class:       string(policy.Class),
			KeyTTL:      durationText(policy.KeyTTL),
			MaxAttempts: policy.MaxAttempts,
			Timeout:     durationText(policy.Timeout),
			Undo:        undoOf(policy.Reversal, slices.Contains(silent, name)),
			AgentSafe:   len(missing) == 0,
			Missing:     missing,
		})
	}
	return tools
}

func undoOf(reversal dispatch.Reversal, isMissing bool) string {
	switch {
	case isMissing:
		return missingUndo
	case reversal.None:
		return "none"
	}
	return reversal.Tool
}

func durationText(duration time.Duration) string {
	if duration == 0 {
		return ""
	}
	return duration.String()
}
