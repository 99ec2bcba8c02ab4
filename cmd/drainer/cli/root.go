package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
)

// options are what every command shares.
type options struct {
	registry    dispatch.Registry
	configPath  string
	databaseURL string
	output      outputFormat
	hangups     func() <-chan os.Signal // from when it is called on
}

func newOptions(registry dispatch.Registry) *options {
	return &options{registry: registry, output: table, hangups: func() <-chan os.Signal { return nil }}
}

const rootHelp = `drainer turns intents that agents commit in Postgres into effects at their
providers, once.

An agent writes an intent in the transaction of its own state; drainer claims
it, sends it with its idempotency key, retries what is safe to retry, and
stores the response where the agent can read it.

Exit codes: 0 ok, 1 failed, 2 usage, 3 config invalid, 4 database unreachable,
5 schema behind.`

const rootExample = `  # check a configuration before it is deployed
  drainer config validate --config drainer.yaml

  # the same for a program
  drainer config validate --config drainer.yaml -o json`

func newRoot(registry dispatch.Registry) *cobra.Command { return rootOf(newOptions(registry)) }

func rootOf(options *options) *cobra.Command {
	root := group("drainer", "Turn committed intents into effects, once")
	root.Long, root.Example = rootHelp, rootExample
	root.Version = currentVersion().Version
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true

	flags := root.PersistentFlags()
	flags.StringVar(&options.configPath, "config", "", "configuration `file`")
	flags.StringVar(&options.databaseURL, "database-url", "", "Postgres `URL` of the outbox (default: the configuration's, then $DATABASE_URL)")
	flags.VarP(&options.output, "output", "o", "`format` of what is printed: table or json")

	root.AddCommand(
		newRun(options),
		newDemo(options),
		newMigrate(options),
		newEnqueue(options),
		newStatus(options),
		newDoctor(options),
		newIntents(options),
		newRuns(options),
		newProviders(options),
		newSagas(options),
		newIncidents(options),
		newSagaChange(options, compensate),
		newConfig(options),
		newVerify(options),
		newVersion(options),
	)
	return root
}

// group is a command that only holds others: alone it prints its help, and
// another word after it is a mistake.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
}
