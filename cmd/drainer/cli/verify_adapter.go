package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// inspection is the command line of `verify adapter`.
type inspection struct {
	provider      string
	tool, payload string
	concurrent    int
	yes           bool
}

func newVerifyAdapter(options *options) *cobra.Command {
	var i inspection
	command := &cobra.Command{
		Use:   "adapter",
		Short: "See whether a configured adapter does what drainer takes for granted",
		Long: `adapter asks a provider's adapter, as it is configured, what can be asked without
sending anything: it builds, refuses an operation that nobody configured, leaves a
dispatch alone whose time is over, tells no secret, and leaves nothing running behind.
An adapter outside of this process is started, or asked for its health, on the way.

With --tool, --payload and --yes it sends, with real effects: a first call; the same
call again, under the same key; different intents at once; and one with a deadline
that is over before the answer comes. Use a sandbox.

It exits with 1 if a check fails, or if the provider was not available. It needs no
database. Whoever writes an adapter has more to ask: docs/conformance.md.`,
		Example: `  # sends nothing
  drainer verify adapter --config drainer.yaml --provider billing

  # sends up to 11 times
  drainer verify adapter --config sandbox.yaml --provider billing --yes \
    --tool charge --payload '{"amount": 100}'
  drainer verify adapter --config sandbox.yaml --provider billing --yes \
    --tool charge --payload @charge.json -o json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.verifyAdapter(command, i)
		},
	}
	flags := command.Flags()
	flags.StringVar(&i.provider, "provider", "", "`name` of the provider in the configuration")
	flags.StringVar(&i.tool, "tool", "", "`operation` to call: what follows the provider's name and a slash")
	flags.StringVar(&i.payload, "payload", "", "what to call it with: `JSON`, or @FILE")
	flags.IntVar(&i.concurrent, "concurrent", 8, "how `many` intents to send at once")
	flags.BoolVar(&i.yes, "yes", false, "really call the provider")
	_ = command.MarkFlagRequired("provider")
	command.MarkFlagsRequiredTogether("tool", "payload")
	return command
}

func (o *options) verifyAdapter(command *cobra.Command, i inspection) error {
	plan, err := i.plan(command)
	if err != nil {
		return err
	}
	loaded, err := o.loadConfig(command)
	if err != nil {
		return err
	}
	installed, err := i.installed(command, loaded)
	if err != nil {
		return err
	}
	if i.tool == "" {
		return o.printInspection(command, installed.Quiet(command.Context()))
	}
	what := fmt.Sprintf("%s/%s at %s, up to %d times", i.provider, i.tool, hostOf(installed.Adapter), plan.Calls(installed.Tools[i.tool]))
	if !i.yes {
		return usagef(command, "this calls %s, with real effects; say --yes if it is a sandbox", what)
	}
	fmt.Fprintf(command.ErrOrStderr(), "calling %s\n", what)
	return o.printInspection(command, installed.Live(command.Context(), plan))
}

func (i inspection) plan(command *cobra.Command) (conformance.Plan, error) {
	switch {
	case i.concurrent < 2 || i.concurrent > 100:
		return conformance.Plan{}, usagef(command, "--concurrent is between 2 and 100")
	case i.tool == "" && i.yes:
		return conformance.Plan{}, usagef(command, "--yes calls a tool: say which, with --tool and --payload")
	case i.tool == "":
		return conformance.Plan{}, nil
	}
	payload, err := readJSON("--payload", i.payload)
	if err != nil {
		return conformance.Plan{}, usagef(command, "%w", err)
	}
	return conformance.Plan{Operation: i.tool, Payload: payload, Concurrent: i.concurrent}, nil
}

// installed finds the adapter, and the tool if there is to be one.
func (i inspection) installed(command *cobra.Command, loaded *config.Config) (conformance.Installed, error) {
	at := slices.IndexFunc(loaded.Providers, func(p config.Provider) bool { return p.Name == i.provider })
	if at < 0 {
		return conformance.Installed{}, usagef(command, "--provider: the configuration has no such provider; drainer config validate lists the tools of each")
	}
	provider := loaded.Providers[at]
	tools := make(map[string]dispatch.Class, len(provider.Tools))
	for operation, policy := range provider.Tools {
		tools[operation] = policy.Class
	}
	if _, known := tools[i.tool]; i.tool != "" && !known {
		return conformance.Installed{}, usagef(command, "--tool: the provider has no such tool; %s", spelling.Suggest(i.tool, slices.Sorted(maps.Keys(tools))))
	}
	return conformance.Installed{
		Provider: provider.Name, Adapter: provider.Adapter, Tools: tools,
		Timeout: provider.Timeout, Secrets: loaded.Secrets,
	}, nil
}

func (o *options) printInspection(command *cobra.Command, report conformance.Report) error {
	if err := o.print(command, report, []string{"CHECK", "VERDICT", "SEEN", "EXPECTED", "ADVICE"}, checkRows(report.Checks)); err != nil {
		return err
	}
	switch {
	case slices.ContainsFunc(report.Checks, func(c conformance.Check) bool { return c.Verdict == conformance.Failed }):
		return errors.New("the adapter does not do what drainer takes for granted")
	case !report.Passed:
		return errors.New("no verdict: the provider was not available; try again")
	}
	return nil
}
