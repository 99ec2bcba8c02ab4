package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newProviders(options *options) *cobra.Command {
	command := group("providers", "List providers, pause and resume them")
	command.AddCommand(
		newProvidersList(options),
		newGate(options, pauseProvider),
		newGate(options, resumeProvider),
	)
	return command
}

func newProvidersList(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List providers, and operations that are shut: who paused them and why, and their circuit breakers",
		Example: `  drainer providers list
  drainer providers list -o json | jq '.[] | select(.paused)'`,
		Args: cobra.NoArgs,
		RunE: options.onOutbox(func(command *cobra.Command, console *operator.Console, _ []string) error {
			providers, err := console.Providers(command.Context())
			if err != nil {
				return err
			}
			return options.print(command, providers, providerTable(providers...))
		}),
	}
}

func providerTable(providers ...operator.Provider) table {
	heading := []string{"PROVIDER", "PAUSED", "CIRCUIT BREAKER", "CHANGED", "BY", "REASON"}
	return tableOf(heading, providers, func(p operator.Provider) []any {
		why := p.Reason
		if p.Breaker != "closed" && p.BreakerReason != nil && !p.Paused {
			why = p.BreakerReason
		}
		return []any{p.Provider, p.Paused, state(p.Breaker), p.ChangedAt, p.ChangedBy, why}
	})
}

// gateChange describes pause or resume.
type gateChange struct {
	use, short, long, example string
	already                   string
	change                    func(*operator.Console, context.Context, string, operator.Signature) (bool, error)
}

var pauseProvider = gateChange{
	use:   "pause PROVIDER",
	short: "Stop sending to a provider, on all workers",
	long: `pause is a kill switch. From its commit on no worker claims the provider's rows;
within a second every worker gives back what it had claimed and not yet sent. What
is in flight ends and is recorded. The rows stay in the queue and lose no attempt;
agents may enqueue more. A paused provider does not serve as a fallback either.`,
	example: `  drainer providers pause stripe --reason "charges twice, ticket 4711"
  drainer status   # IN PROGRESS: what is still in flight`,
	already: "was paused already",
	change:  (*operator.Console).Pause,
}

var resumeProvider = gateChange{
	use:   "resume PROVIDER",
	short: "Send to a paused provider again, or try one whose circuit breaker is open",
	long: `resume ends a pause: within a second every worker claims the provider's rows again.
Where a circuit breaker is open, of the provider or of an operation, one row tries it
at once: after you have corrected a credential or a permission, for example.`,
	example: `  drainer providers resume stripe --reason "ticket 4711 is fixed"`,
	already: "was not paused, and no circuit breaker of it was open",
	change:  (*operator.Console).Resume,
}

func newGate(options *options, kind gateChange) *cobra.Command {
	return options.signed(&cobra.Command{
		Use: kind.use, Short: kind.short, Long: kind.long, Example: kind.example,
		Args: cobra.ExactArgs(1),
	}, func(command *cobra.Command, console *operator.Console, args []string, by operator.Signature) error {
		changed, err := kind.change(console, command.Context(), args[0], by)
		if err != nil {
			return err
		}
		if !changed {
			fmt.Fprintf(command.ErrOrStderr(), "drainer: %s %s\n", args[0], kind.already)
		}
		after, err := console.Provider(command.Context(), args[0])
		if err != nil {
			return err
		}
		return options.print(command, after, providerTable(after))
	})
}
