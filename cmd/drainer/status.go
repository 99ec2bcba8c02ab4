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
		Short: "Show what waits, what is in progress and what is shut, by provider",
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
					[]string{"PROVIDER", "PENDING", "DUE", "IN PROGRESS", "OLDEST DUE", "OLDEST IN PROGRESS", "PAUSED", "BREAKER", "OPEN FOR"}, providerRows(overview.Providers))
			})
		},
	}
}

func providerRows(providers []operator.ProviderOverview) [][]string {
	rows := make([][]string, len(providers))
	for i, p := range providers {
		rows[i] = []string{
			p.Provider, count(p.Pending), count(p.Due), strconv.FormatInt(p.InProgress, 10), seconds(&p.OldestDueAgeSeconds),
			seconds(&p.OldestInProgressAgeSeconds), strconv.FormatBool(p.Paused), breaker(p), seconds(p.OpenForSeconds),
		}
	}
	return rows
}

// breaker tells rows that wait for a provider from rows that nobody looks at.
func breaker(p operator.ProviderOverview) string {
	if p.Breaker == nil {
		return "not configured"
	}
	return *p.Breaker
}

// seconds is empty where there are none to count.
func seconds(n *float64) string {
	if n == nil {
		return ""
	}
	return time.Duration(*n * float64(time.Second)).Round(time.Second).String()
}

func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	if n >= operator.CountLimit {
		return text + "+"
	}
	return text
}
