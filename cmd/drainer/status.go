package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newStatus(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what waits and what is in progress, by provider",
		Example: `  drainer status
  drainer status -o json   # also lists the workers, and counts key collisions`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.withConsole(command, func(console *operator.Console) error {
				overview, err := console.Overview(command.Context())
				if err != nil {
					return err
				}
				return options.print(command, overview,
					[]string{"PROVIDER", "PENDING", "DUE", "IN PROGRESS", "OLDEST DUE", "PAUSED"}, providerRows(overview.Providers))
			})
		},
	}
}

func providerRows(providers []operator.ProviderOverview) [][]string {
	rows := make([][]string, len(providers))
	for i, p := range providers {
		age := time.Duration(p.OldestDueAgeSeconds * float64(time.Second)).Round(time.Second)
		rows[i] = []string{p.Provider, count(p.Pending), count(p.Due), strconv.FormatInt(p.InProgress, 10), age.String(), strconv.FormatBool(p.Paused)}
	}
	return rows
}

func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	if n >= operator.CountLimit {
		return text + "+"
	}
	return text
}
