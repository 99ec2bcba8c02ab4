package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
)

// loadConfig reads the file that --config names, for commands about its
// providers. Others, such as migrate, are content with a database.
func (o *options) loadConfig(command *cobra.Command) (*config.Config, error) {
	return o.loadConfigBy(command, config.Load)
}

func (o *options) loadConfigBy(command *cobra.Command, load func(string, dispatch.Registry) (*config.Config, error)) (*config.Config, error) {
	if o.configPath == "" {
		return nil, usagef(command, "say which configuration to use: --config FILE")
	}
	loaded, err := load(o.configPath, o.registry)
	if err != nil {
		return nil, err
	}
	if len(loaded.Providers) == 0 {
		return nil, &config.InvalidError{Files: loaded.Files, Problems: []*config.Error{{
			File:    o.configPath,
			Message: "there are no providers, so there is nothing to drain; add one under providers",
		}}}
	}
	return loaded, nil
}

// findDatabase is the database URL of a command that needs nothing else of
// the configuration, and reads the file only where its word counts.
func (o *options) findDatabase(command *cobra.Command) (string, error) {
	if o.databaseURL != "" || o.configPath == "" {
		return o.databaseOf(command, &config.Config{})
	}
	loaded, err := config.Load(o.configPath, o.registry)
	if err != nil {
		return "", err
	}
	return o.databaseOf(command, loaded)
}

// databaseOf chooses: the flag, else the configuration, else the environment.
func (o *options) databaseOf(command *cobra.Command, loaded *config.Config) (string, error) {
	for _, url := range []string{o.databaseURL, loaded.DatabaseURL, os.Getenv("DATABASE_URL")} {
		if url != "" {
			return url, nil
		}
	}
	return "", usagef(command, "say which database to use: --database-url URL, database.url in the configuration, or DATABASE_URL")
}
