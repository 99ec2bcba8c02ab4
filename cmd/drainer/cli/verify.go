package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/contract/replay"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/internal/spelling"
)

func newVerify(options *options) *cobra.Command {
	command := group("verify", "Test what providers promise, and what adapters must do")
	command.AddCommand(newVerifyAdapter(options), newVerifyManifest(options), newVerifyReplay(options))
	return command
}

// liveCalls are the flags of the commands that really call a provider.
type liveCalls struct {
	tool, payload string
	concurrent    int
	yes           bool
}

func (l *liveCalls) addFlags(command *cobra.Command, tool string) {
	flags := command.Flags()
	flags.StringVar(&l.tool, "tool", "", tool)
	flags.StringVar(&l.payload, "payload", "", "what to call it with: `JSON`, or @FILE")
	flags.IntVar(&l.concurrent, "concurrent", 8, "how `many` intents to send at once")
	flags.BoolVar(&l.yes, "yes", false, "really call the provider")
}

func (l liveCalls) readPayload(command *cobra.Command) (json.RawMessage, error) {
	if l.concurrent < 2 || l.concurrent > 100 {
		return nil, usagef(command, "--concurrent is between 2 and 100")
	}
	if l.tool == "" {
		return nil, nil
	}
	payload, err := readJSON("--payload", l.payload)
	if err != nil {
		return nil, usagef(command, "%w", err)
	}
	return payload, nil
}

// confirm refuses to call a provider without --yes.
func (l liveCalls) confirm(command *cobra.Command, tool string, adapter dispatch.Adapter, calls int) error {
	what := fmt.Sprintf("%s at %s, up to %d times", tool, hostOf(adapter), calls)
	if !l.yes {
		return usagef(command, "this calls %s, with real effects; say --yes if it is a sandbox", what)
	}
	fmt.Fprintf(command.ErrOrStderr(), "calling %s\n", what)
	return nil
}

// inspection is the command line of `verify adapter`.
type inspection struct {
	liveCalls
	provider string
}

func newVerifyAdapter(options *options) *cobra.Command {
	var i inspection
	command := &cobra.Command{
		Use:   "adapter",
		Short: "Test whether a configured adapter does what drainer requires",
		Long: `adapter checks a configured adapter. Without --tool it sends nothing: the adapter
must build, start its child or connect, find its tools there, refuse an operation that
is not configured, dispatch nothing after its deadline, repeat no secret, and leave
nothing running. A check that was not made is "not run".

With --tool, --payload and --yes it sends, with real effects: a first call; the same
call again, under the same key; different intents at once; and one with a deadline
that is over before the answer comes. Use a sandbox.

It exits with 1 if a check fails, or if the provider was not available. It needs no
database. To test an adapter that you write: docs/conformance.md.`,
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
	command.Flags().StringVar(&i.provider, "provider", "", "`name` of the provider in the configuration")
	i.addFlags(command, "`operation` to call: what follows the provider's name and a slash")
	_ = command.MarkFlagRequired("provider")
	command.MarkFlagsRequiredTogether("tool", "payload")
	return command
}

func (o *options) verifyAdapter(command *cobra.Command, i inspection) error {
	payload, err := i.readPayload(command)
	if err != nil {
		return err
	}
	if i.tool == "" && i.yes {
		return usagef(command, "--yes calls a tool: say which, with --tool and --payload")
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
		return o.printInspection(command, loaded, installed.Quiet(command.Context()))
	}
	plan := dispatchtest.LivePlan{Operation: i.tool, Payload: payload, Concurrent: i.concurrent}
	if err := i.confirm(command, i.provider+"/"+i.tool, installed.Adapter, plan.Calls(installed.Tools[i.tool])); err != nil {
		return err
	}
	return o.printInspection(command, loaded, installed.Live(command.Context(), plan))
}

// installed returns the adapter, and checks that the tool exists if one is named.
func (i inspection) installed(command *cobra.Command, loaded *config.Config) (dispatchtest.Installed, error) {
	provider, known := loaded.Provider(i.provider)
	if !known {
		return dispatchtest.Installed{}, usagef(command, "--provider: the configuration has no such provider; drainer config validate lists the tools of each")
	}
	tools := make(map[string]dispatch.Class, len(provider.Tools))
	for operation, policy := range provider.Tools {
		tools[operation] = policy.Class
	}
	if _, known := tools[i.tool]; i.tool != "" && !known {
		return dispatchtest.Installed{}, usagef(command, "--tool: the provider has no such tool; %s", spelling.Suggest(i.tool, slices.Sorted(maps.Keys(tools))))
	}
	return dispatchtest.Installed{
		Provider: provider.Name, Adapter: provider.Adapter, Tools: tools,
		Timeout: provider.Timeout, Secrets: loaded.Secrets,
	}, nil
}

func (o *options) printInspection(command *cobra.Command, loaded *config.Config, report dispatchtest.Report) error {
	redactChecks(loaded, report.Checks)
	if err := o.print(command, report, checkTable(report.Checks)); err != nil {
		return err
	}
	failed := func(c dispatchtest.Check) bool { return c.Verdict == dispatchtest.Failed }
	switch first := slices.IndexFunc(report.Checks, failed); {
	case first >= 0 && report.Checks[first].Name == dispatchtest.Handshake:
		return errors.New("the adapter cannot reach its other side: " + report.Checks[first].Seen)
	case first >= 0:
		return errors.New("the adapter does not do what drainer requires")
	case !report.Passed:
		return errors.New("no verdict: the provider was not available; try again")
	}
	return nil
}

func newVerifyManifest(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "manifest SPEC",
		Short: "Find what an OpenAPI document leaves open about repeated calls",
		Long: `manifest reads the extension x-agent-idempotency of an OpenAPI document, 3.0 or
3.1, JSON or YAML, and reports every violation with its cure: a write without the
extension, a key without a lifetime, a status or header that the operation does not
document. It makes no network call and follows no reference to another file.

It exits with 1 if there is a violation. docs/contract.md describes the extension.`,
		Example: `  drainer verify manifest openapi.yaml
  drainer verify manifest openapi.json -o json | jq '.violations[] | {method, path, rule}'`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			document, err := manifest.Load(args[0])
			if err != nil {
				return err
			}
			return options.printVerdict(command, document)
		},
	}
}

// manifestVerdict is the output of `verify manifest -o json`.
type manifestVerdict struct {
	Valid      bool                 `json:"valid"`
	Operations int                  `json:"operations"`
	Writes     int                  `json:"writes"`
	Violations []manifest.Violation `json:"violations"`
}

func (o *options) printVerdict(command *cobra.Command, document *manifest.Document) error {
	violations := document.Violations()
	verdict := manifestVerdict{Valid: len(violations) == 0, Operations: len(document.Operations), Violations: violations}
	for _, operation := range document.Operations {
		if operation.Writes() {
			verdict.Writes++
		}
	}
	if verdict.Valid && verdict.Operations > 0 && o.output == tableOutput {
		_, err := fmt.Fprintf(command.OutOrStdout(), "%d operations, %d writes, no violation\n", verdict.Operations, verdict.Writes)
		return err
	}
	if verdict.Operations == 0 {
		return errors.New("the document has no operation, so nothing was checked; name the OpenAPI document of the provider")
	}
	line := func(v manifest.Violation) any {
		if v.Line == 0 {
			return "-"
		}
		return v.Line
	}
	heading := []string{"LINE", "OPERATION", "PLACE", "PROBLEM", "CURE"}
	if err := o.print(command, verdict, tableOf(heading, violations, func(v manifest.Violation) []any {
		return []any{line(v), v.Method + " " + v.Path, v.Place, v.Problem, v.Cure}
	})); err != nil {
		return err
	}
	if !verdict.Valid {
		return fmt.Errorf("%d violations in %d operations", len(violations), verdict.Operations)
	}
	return nil
}

// trial is the command line of `verify replay`.
type trial struct {
	liveCalls
	other string
}

func newVerifyReplay(options *options) *cobra.Command {
	var t trial
	command := &cobra.Command{
		Use:   "replay",
		Short: "Call a sandbox provider repeatedly, and compare the answers with its promises",
		Long: `replay calls a tool's provider for real: twice with one fresh idempotency key,
once more with another payload, and many times at once with a second fresh key. It
reports whether the key was recognised, by a replay marker or by the provider's
reference; whether the body is the same, byte for byte as it would be stored;
and how the other calls were refused. A provider that keeps its promise has two
effects; another one has more. Use a sandbox.

It exits with 1 if the provider does not keep the promise of the tool's class, or was
not available. It needs no database.`,
		Example: `  drainer verify replay --config sandbox.yaml --tool billing/charge --yes \
    --payload '{"amount": 100}' --other-payload '{"amount": 200}'
  drainer verify replay --config sandbox.yaml --tool billing/charge --yes \
    --payload @charge.json -o json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.verifyReplay(command, t)
		},
	}
	t.addFlags(command, "`<provider>/<operation>`")
	command.Flags().StringVar(&t.other, "other-payload", "", "another payload that it accepts, for the same key: `JSON`, or @FILE")
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
	subject, err := t.subject(command, loaded)
	if err != nil {
		return err
	}
	if err := t.confirm(command, t.tool, subject.Adapter, plan.Calls()); err != nil {
		return err
	}
	report, err := replay.Run(command.Context(), subject, plan)
	if err != nil {
		return err
	}
	secrets := redactChecks(loaded, report.Checks)
	for i := range report.Calls {
		call := &report.Calls[i]
		call.Error, call.ProviderRef = secrets.Text(call.Error), secrets.Text(call.ProviderRef)
	}
	if err := o.print(command, report, checkTable(report.Checks)); err != nil {
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
	payload, err := t.readPayload(command)
	if err != nil {
		return replay.Plan{}, err
	}
	var other json.RawMessage
	if t.other != "" {
		if other, err = readJSON("--other-payload", t.other); err != nil {
			return replay.Plan{}, usagef(command, "%w", err)
		}
	}
	return replay.Plan{Payload: payload, Other: other, Concurrent: t.concurrent}, nil
}

func (t trial) subject(command *cobra.Command, loaded *config.Config) (replay.Subject, error) {
	name := dispatch.Tuple{ToolName: t.tool}
	provider, _ := loaded.Provider(name.Provider())
	policy, known := provider.Tools[name.Operation()]
	switch {
	case !known:
		return replay.Subject{}, usagef(command, "--tool: the configuration has no such tool; drainer config validate lists them")
	case policy.Class == dispatch.NonIdempotent:
		return replay.Subject{}, replay.ErrNothingPromised
	}
	return replay.Subject{Tool: t.tool, Class: policy.Class, Adapter: provider.Adapter}, nil
}

// hostOf returns the addresses that an adapter calls, if it reports them.
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
	return "an address that its adapter does not report"
}

// redactChecks removes the secrets of the configuration from the texts of providers and adapters.
func redactChecks(loaded *config.Config, checks []dispatchtest.Check) *drainer.Redactor {
	secrets := drainer.NewRedactor(loaded.Secrets)
	for i := range checks {
		checks[i].Seen = secrets.Text(checks[i].Seen)
	}
	return secrets
}

func checkTable(checks []dispatchtest.Check) table {
	heading := []string{"CHECK", "VERDICT", "SEEN", "EXPECTED", "ADVICE"}
	return tableOf(heading, checks, func(c dispatchtest.Check) []any {
		return []any{c.Name, c.Verdict, c.Seen, c.Expected, c.Advice}
	})
}
