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
	return &cobra.Command{
		Use:   "status",
		Short: "Show the queue, the providers and the open incidents",
		Long: `status counts for each provider the intents that wait, are due or are in progress,
and shows whether it is paused or its circuit breaker is open. Below, it counts the
sagas and incidents that need a human.`,
		Example: `  drainer status
  watch drainer status
  drainer status -o json   # also lists the workers, and counts key collisions`,
		Args: cobra.NoArgs,
		RunE: options.onOutbox(func(command *cobra.Command, console *operator.Console, _ []string) error {
			overview, err := console.Overview(command.Context())
			if err != nil {
				return err
			}
			if options.output == jsonOutput {
				return printJSON(command.OutOrStdout(), overview)
			}
			return writeOverview(command.OutOrStdout(), overview)
		}),
	}
}

func writeOverview(to io.Writer, overview operator.Overview) error {
	heading := []string{"PROVIDER", "PENDING", "DUE", "IN PROGRESS", "OLDEST DUE", "OLDEST IN PROGRESS", "PAUSED", "BREAKER", "OPEN FOR"}
	providers := tableOf(heading, overview.Providers, func(p operator.ProviderOverview) []any {
		breaker := "not configured" // no worker ever had the provider in its configuration
		if p.Breaker != nil {
			breaker = *p.Breaker
		}
		return []any{
			p.Provider, count(p.Pending), count(p.Due), p.InProgress, seconds(&p.OldestDueAgeSeconds),
			seconds(&p.OldestInProgressAgeSeconds), p.Paused, state(breaker), seconds(p.OpenForSeconds),
		}
	})
	if err := providers.print(to); err != nil {
		return err
	}
	if notes := attentionNotes(overview.Attention); len(notes) > 0 {
		fmt.Fprintln(to, "\n"+strings.Join(notes, "\n"))
	}
	return nil
}

// attentionNotes counts the sagas and incidents that need a human, each with the command that lists them.
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

// seconds returns "" for nil.
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
