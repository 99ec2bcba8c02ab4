package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newStatus(options *options) *cobra.Command {
	var watching bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, what is in progress and what is shut, by provider, and what wants a human",
		Long: `status shows what waits, what is in progress and what is shut, by provider, and
what wants a human.

With --watch it looks again every second until it is interrupted, and then exits
with 0. On a terminal it redraws; elsewhere it appends a line a second, or a JSON
object with -o json. The rates are of the last ten seconds or so, from Postgres's
own counters. A database that goes away is waited for.`,
		Example: `  drainer status
  drainer status --watch
  drainer status -o json   # also lists the workers, and counts key collisions`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if watching {
				return options.watch(command)
			}
			return options.withConsole(command, func(console *operator.Console) error {
				overview, err := console.Overview(command.Context())
				if err != nil {
					return err
				}
				if options.output == jsonText {
					return printJSON(command.OutOrStdout(), overview)
				}
				return writeOverview(command.OutOrStdout(), overview)
			})
		},
	}
	command.Flags().BoolVar(&watching, "watch", false, "look again every second, until interrupted")
	return command
}

func writeOverview(to io.Writer, overview operator.Overview) error {
	heading := []string{"PROVIDER", "PENDING", "DUE", "IN PROGRESS", "OLDEST DUE", "OLDEST IN PROGRESS", "PAUSED", "BREAKER", "OPEN FOR"}
	if err := printTable(to, heading, providerRows(overview.Providers)); err != nil {
		return err
	}
	if notes := attentionNotes(overview.Attention); len(notes) > 0 {
		fmt.Fprintln(to, "\n"+strings.Join(notes, "\n"))
	}
	return nil
}

// attentionNotes name the command that tells more.
func attentionNotes(a operator.Attention) (notes []string) {
	for _, counted := range []struct {
		n            int64
		what, tellMe string
	}{
		{a.SagasBegun, "sagas under way", "drainer sagas list --state begun"},
		{a.SagasFailed, "sagas failed", "drainer sagas list --state compensation_failed"},
		{a.IncidentsOpen, "incidents open", "drainer incidents list"},
	} {
		if counted.n > 0 {
			notes = append(notes, fmt.Sprintf("%s: %s   (%s)", counted.what, count(counted.n), counted.tellMe))
		}
	}
	return notes
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
