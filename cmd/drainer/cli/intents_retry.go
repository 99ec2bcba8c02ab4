package cli

import (
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIntentsRetry(options *options) *cobra.Command {
	var retry operator.Retry
	command := newChange(options, change{
		usual: []string{"failed", "unknown"},
		other: []string{"cancelled"},
		action: func(command *cobra.Command) (_ operator.Action, err error) {
			retry.PolicyOf, err = options.policies(command)
			return retry, err
		},
	})
	command.Use = "retry [INTENT]"
	command.Short = "Put failed and unknown intents back into the queue, under the same key"
	command.Long = `retry puts settled intents back into the queue: due now, with all their tries, and
under the same idempotency key. It is refused for a run that is being compensated.

What may have been applied already is repeated only where that is safe: the
configuration says that repeating does no harm, or that the provider still
remembers the key (until half of its ttl is over). Else find out what happened and
resolve the intent, or accept a second effect with --may-duplicate.

` + bulkHelp
	command.Example = `  drainer intents retry 42 --reason "card was unblocked" --config drainer.yaml

  # all that a provider refused in its outage: look first, then do it
  drainer intents retry --status failed --provider stripe --config drainer.yaml
  drainer intents retry --status failed --provider stripe --config drainer.yaml --yes --reason "outage is over"

  # nobody can tell whether the mail went out, and twice is better than never
  drainer intents retry 43 --may-duplicate --reason "customer says it never came"`
	command.Flags().BoolVar(&retry.MayDuplicate, "may-duplicate", false, "accept a second effect of what may have been applied")
	return command
}

// policies finds what the configuration, if there is one, promises about tools.
func (o *options) policies(command *cobra.Command) (func(provider, operation string) (dispatch.Policy, bool), error) {
	if o.configPath == "" {
		return nil, nil
	}
	loaded, err := o.loadConfig(command)
	if err != nil {
		return nil, err
	}
	providers := map[string]config.Provider{}
	for _, provider := range loaded.Providers {
		providers[provider.Name] = provider
	}
	return func(provider, operation string) (dispatch.Policy, bool) {
		policy, known := providers[provider].Tools[operation]
		return policy, known
	}, nil
}
