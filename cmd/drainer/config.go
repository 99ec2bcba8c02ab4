package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/config"
)

//go:generate sh -c "go run . config schema > schema.tmp && mv schema.tmp ../../drainer.schema.json"

func newConfig(options *options) *cobra.Command {
	command := group("config", "Check a configuration, or print its schema")
	command.AddCommand(newConfigValidate(options), newConfigSchema(options))
	return command
}

func newConfigValidate(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Find every mistake in a configuration, with file, line and column",
		Long: `validate reads a configuration as run does: strictly, with its secrets, and
with every adapter built. It connects to nothing. A valid one is summed up, one
line a tool; the mistakes of another go to standard error, and it exits with 3.`,
		Example: `  drainer config validate --config drainer.yaml
  drainer config validate --config drainer.yaml -o json | jq '.errors[]'`,
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
	Tool        string `json:"tool"`
	Class       string `json:"class"`
	KeyTTL      string `json:"key_ttl,omitempty"`
	MaxAttempts int    `json:"max_attempts"`
	Timeout     string `json:"timeout"`
}

func (o *options) printValid(command *cobra.Command, loaded *config.Config) error {
	tools := summarize(loaded)
	rows := make([][]string, len(tools))
	for i, tool := range tools {
		rows[i] = []string{tool.Tool, tool.Class, tool.KeyTTL, strconv.Itoa(tool.MaxAttempts), tool.Timeout}
	}
	heading := []string{"TOOL", "CLASS", "KEY TTL", "MAX ATTEMPTS", "TIMEOUT"}
	return o.print(command, validation{Valid: true, Tools: tools}, heading, rows)
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
	for _, provider := range loaded.Providers {
		for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
			policy := provider.Tools[operation]
			tools = append(tools, toolSummary{
				Tool:        provider.Name + "/" + operation,
				Class:       string(policy.Class),
				KeyTTL:      durationText(policy.KeyTTL),
				MaxAttempts: policy.MaxAttempts,
				Timeout:     durationText(provider.Timeout),
			})
		}
	}
	return tools
}

func durationText(duration time.Duration) string {
	if duration == 0 {
		return ""
	}
	return duration.String()
}
