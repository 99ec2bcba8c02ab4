package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/contract/replay"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/conformance"
	"github.com/agentoutbox/drainer/drainer/config"
)

// trial is the command line of `verify replay`.
type trial struct {
	tool           string
	payload, other string
	concurrent     int
	yes            bool
}

func newVerifyReplay(options *options) *cobra.Command {
	var t trial
	command := &cobra.Command{
		Use:   "replay",
		Short: "Call a sandbox provider repeatedly, and see whether it keeps its word",
		Long: `replay calls a tool's provider for real: twice with one fresh idempotency key,
once more with another payload, and many times at once with a second fresh key. It
reports whether the key was recognised, by a replay marker or by the provider's
reference; whether the body is the same, octet for octet as it would be stored;
and how the other calls were refused. A provider that keeps its word has two
effects; one that does not has more. Use a sandbox.

It exits with 1 if the provider does not do what the class of the tool declares, or
was not available to show it. It needs no database.`,
		Example: `  drainer verify replay --config sandbox.yaml --tool billing/charge --yes \
    --payload '{"amount": 100}' --other-payload '{"amount": 200}'
  drainer verify replay --config sandbox.yaml --tool billing/charge --yes \
    --payload @charge.json -o json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.verifyReplay(command, t)
		},
	}
	flags := command.Flags()
	flags.StringVar(&t.tool, "tool", "", "`<provider>/<operation>`")
	flags.StringVar(&t.payload, "payload", "", "what to call it with: `JSON`, or @FILE")
	flags.StringVar(&t.other, "other-payload", "", "another payload that it accepts, for the same key: `JSON`, or @FILE")
	flags.IntVar(&t.concurrent, "concurrent", 8, "how `many` calls to make at once")
	flags.BoolVar(&t.yes, "yes", false, "really call the provider")
	for _, name := range []string{"tool", "payload"} {
		_ = command.MarkFlagRequired(name)
	}
	return command
}

func (o *options) verifyReplay(command *cobra.Command, t trial) error {
	plan, err := t.plan(command)
	if err != nil {
		return err
	}
	loaded, err := o.loadConfig(command)
	if err != nil {
		return err
	}
	subject, host, err := t.subject(command, loaded)
	if err != nil {
		return err
	}
	if !t.yes {
		return usagef(command, "this calls %s at %s up to %d times, with real effects; say --yes if it is a sandbox", t.tool, host, plan.Calls())
	}
	fmt.Fprintf(command.ErrOrStderr(), "calling %s at %s, up to %d times\n", t.tool, host, plan.Calls())
	report, err := replay.Run(command.Context(), subject, plan)
	if err != nil {
		return err
	}
	if err := o.print(command, report, []string{"CHECK", "VERDICT", "SEEN", "EXPECTED", "ADVICE"}, checkRows(report.Checks)); err != nil {
		return err
	}
	switch {
	case report.Unavailable():
		return errors.New("no verdict: the provider was not available; try again")
	case !report.Passed:
		return errors.New("the provider does not do what the tool declares")
	}
	return nil
}

func (t trial) plan(command *cobra.Command) (replay.Plan, error) {
	if t.concurrent < 2 || t.concurrent > 100 {
		return replay.Plan{}, usagef(command, "--concurrent is between 2 and 100")
	}
	payload, err := readJSON("--payload", t.payload)
	if err != nil {
		return replay.Plan{}, usagef(command, "%w", err)
	}
	var other json.RawMessage
	if t.other != "" {
		if other, err = readJSON("--other-payload", t.other); err != nil {
			return replay.Plan{}, usagef(command, "%w", err)
		}
	}
	return replay.Plan{Payload: payload, Other: other, Concurrent: t.concurrent}, nil
}

// subject finds the tool, and the host that its adapter calls.
func (t trial) subject(command *cobra.Command, loaded *config.Config) (replay.Subject, string, error) {
	name := dispatch.Tuple{ToolName: t.tool}
	for _, provider := range loaded.Providers {
		policy, known := provider.Tools[name.Operation()]
		if provider.Name != name.Provider() || !known {
			continue
		}
		if policy.Class == dispatch.NonIdempotent {
			return replay.Subject{}, "", replay.ErrNothingPromised
		}
		return replay.Subject{Tool: t.tool, Class: policy.Class, Adapter: provider.Adapter}, hostOf(provider.Adapter), nil
	}
	return replay.Subject{}, "", usagef(command, "--tool: the configuration has no such tool; drainer config validate lists them")
}

// hostOf is where an adapter's calls go, if it can tell.
func hostOf(adapter dispatch.Adapter) string {
	if located, ok := adapter.(dispatch.Located); ok {
		var addresses []string
		for _, destination := range located.Destinations() {
			addresses = append(addresses, destination.Address)
		}
		if len(addresses) > 0 {
			return strings.Join(addresses, ", ")
		}
	}
	return "a place that only its adapter knows"
}

func checkRows(checks []conformance.Check) [][]string {
	rows := make([][]string, len(checks))
	for i, c := range checks {
		rows[i] = []string{c.Name, string(c.Verdict), c.Seen, c.Expected, c.Advice}
	}
	return rows
}
