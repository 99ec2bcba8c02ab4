package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/contract/providerblock"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/incident"
)

func newConfig(options *options) *cobra.Command {
	command := group("config", "Check a configuration, print its schema, or import a provider")
	command.AddCommand(newConfigValidate(options), newConfigSchema(options), newConfigImport())
	return command
}

func newConfigValidate(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "validate [FILE FILE]",
		Short: "Find every mistake in a configuration, with file, line and column",
		Long: `validate reads a configuration as run does: strictly, with its secrets, and
with every adapter built. It connects to nothing. For a valid file it prints a line
for each tool. Mistakes go to standard error, and the exit code is 3.

It warns of a non_idempotent tool without lookup, compensate_with or
reversal_window: they say how to look an effect up, what undoes it, and for how
long. It also warns of a tool that acts and has neither compensate_with nor
compensation: none, because a run that used it cannot be compensated. It warns of
incidents that reach no channel under pages.

With two files it compares them instead, as they are written: it reads no secret
and finds no other mistake. It lists providers that both files reach at one address
without different namespaces, with the same credentials or others. If each file has
an outbox of its own, both make the same keys there, and of two effects one is lost.`,
		Example: `  drainer config validate --config drainer.yaml
  drainer config validate --config drainer.yaml -o json | jq '.errors[]'

  # fail a build that lets agents use an unsafe tool
  drainer config validate --config drainer.yaml -o json | jq -e 'all(.tools[]; .agent_safe)'

  # do production and staging reach one account?
  drainer config validate production.yaml staging.yaml`,
		Args: func(command *cobra.Command, files []string) error {
			if len(files) != 0 && len(files) != 2 || len(files) == 2 && options.configPath != "" {
				return usagef(command, "name either one file by --config, or two files to compare")
			}
			return nil
		},
		RunE: func(command *cobra.Command, files []string) error {
			if len(files) == 2 {
				return options.compareAccounts(command, files[0], files[1])
			}
			loaded, err := options.loadConfig(command)
			if err != nil {
				return errors.Join(err, options.printInvalid(command, err))
			}
			return options.printValid(command, loaded)
		},
	}
}

// comparison is the output of `config validate FILE FILE -o json`.
type comparison struct {
	Shared []config.Shared `json:"shared"`
}

func (o *options) compareAccounts(command *cobra.Command, one, other string) error {
	shared, err := config.SharedAccounts(one, other)
	if err != nil {
		return err
	}
	heading := []string{"PROVIDER", "ADDRESS", "CREDENTIALS", "NAMESPACE"}
	if err := o.print(command, comparison{shared}, tableOf(heading, shared, func(s config.Shared) []any {
		credentials := "others"
		if s.SameCredentials {
			credentials = "same"
		}
		return []any{s.Provider, "same", credentials, "same"}
	})); err != nil {
		return err
	}
	if len(shared) > 0 {
		fmt.Fprintf(command.ErrOrStderr(), "drainer: warning: providers whose account two outboxes may share, with the same keys: %d; "+
			"give each file an idempotency.namespace there, or each outbox one of its own\n", len(shared))
	}
	return nil
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

// validation is the output of `config validate -o json`.
type validation struct {
	Valid  bool            `json:"valid"`
	Tools  []console.Tool  `json:"tools,omitempty"`
	Errors []*config.Error `json:"errors,omitempty"`
}

const missingUndo = "missing"

func (o *options) printValid(command *cobra.Command, loaded *config.Config) error {
	tools := summarize(loaded)
	heading := []string{"TOOL", "CLASS", "KEY TTL", "MAX ATTEMPTS", "TIMEOUT", "COMPENSATION", "AGENT SAFE"}
	if err := o.print(command, validation{Valid: true, Tools: tools}, tableOf(heading, tools, func(t console.Tool) []any {
		return []any{t.Name, t.Class, t.KeyTTL, t.MaxAttempts, t.Timeout, t.Undo, safety(t)}
	})); err != nil {
		return err
	}
	warn(command.ErrOrStderr(), tools)
	warnOfPages(command.ErrOrStderr(), loaded)
	if short := drainer.TooShort(loaded.Secrets); short > 0 {
		fmt.Fprintf(command.ErrOrStderr(), "drainer: warning: secrets shorter than 8 bytes, which are not taken out of what providers answer: %d\n", short)
	}
	return nil
}

func safety(t console.Tool) string {
	if t.AgentSafe {
		return "yes"
	}
	return "no, lacks " + strings.Join(t.Missing, ", ")
}

func warn(to io.Writer, tools []console.Tool) {
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

// warnOfPages warns of incidents that reach no channel. It also names kinds that need no human by default, since
// only the user can decide that.
func warnOfPages(to io.Writer, loaded *config.Config) {
	if unrouted := loaded.Unrouted(incident.Kinds()...); len(unrouted) > 0 {
		fmt.Fprintf(to, "drainer: warning: incidents that reach no channel under pages: %s\n", strings.Join(unrouted, "; "))
	}
	if unmatched := loaded.Unmatched(); len(unmatched) > 0 {
		fmt.Fprintf(to, "drainer: warning: channels that match what this file does not configure: %s\n", strings.Join(unmatched, "; "))
	}
}

// printInvalid prints the mistakes as JSON, if -o json asks for it.
func (o *options) printInvalid(command *cobra.Command, err error) error {
	var invalid *config.InvalidError
	if o.output != jsonOutput || !errors.As(err, &invalid) {
		return nil
	}
	return printJSON(command.OutOrStdout(), validation{Errors: invalid.Problems})
}

// summarize lists the tools of a configuration. It lists none if loaded is nil.
func summarize(loaded *config.Config) (tools []console.Tool) {
	if loaded == nil {
		return nil
	}
	silent := loaded.Uncompensated()
	for name, policy := range loaded.Tools() {
		missing := config.MissingSafeguards(policy)
		tools = append(tools, console.Tool{
			Name:        name,
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

func newConfigImport() *cobra.Command {
	var provider string
	command := &cobra.Command{
		Use:   "import SPEC",
		Short: "Write a provider's configuration from its OpenAPI document",
		Long: `import turns what an OpenAPI document declares with x-agent-idempotency into a
configuration of one provider: where it lives, where it wants the key, and a tool
for each operation, named by its operationId. The payload of a tool holds the
required parameters and the fields of the body, by name.

An operation that violates the extension, or that drainer cannot send as it is
documented, is left out and named on standard error. The exit code is then 1.
Add credentials and http.response.ref yourself.`,
		Example: `  drainer config import openapi.yaml --provider billing > drainer.yaml
  drainer config validate --config drainer.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if provider == "" || strings.Contains(provider, "/") {
				return usagef(command, "--provider is the part of a tool name before the slash; it is not empty and has no slash")
			}
			document, err := manifest.Load(args[0])
			if err != nil {
				return err
			}
			return printBlock(command, document, provider)
		},
	}
	command.Flags().StringVar(&provider, "provider", "", "`name` of the provider: the part of a tool name before the slash")
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
