package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

// newHistory shows the stretches of the database's commits. printHistory prints the history of an intent.
func newHistory(options *options) *cobra.Command {
	command := &cobra.Command{
		Use:   "history",
		Short: "Show whether the database lost commits, or accept that it did",
		Long: `history lists the stretches of the database's history, the newest first. Another one
begins where commits may have been lost: after a failover, or in a copy or a backup.
Until it is accepted, providers with a non_idempotent tool or a fallback get nothing.

It is accepted by itself once a lease is over and every worker has found what was
committed to it, by "failover: lossless" in the configuration, or by history accept.`,
		Example: `  drainer history
  drainer history accept --reason "restored from the backup of 12:00"`,
		Args: cobra.NoArgs,
		RunE: options.onOutbox(options.printHistories),
	}
	command.AddCommand(newHistoryAccept(options))
	return command
}

func newHistoryAccept(options *options) *cobra.Command {
	var lossless bool
	command := options.signed(&cobra.Command{
		Use:   "accept",
		Short: "Go on after the database may have lost commits",
		Long: `accept lets the providers that wait be sent to again. What was queued until now may have
been applied, whenever it is due: it is looked up where its tool has a lookup, repeated
under its key where that is safe, and else unknown, with an incident. Where the provider
has a fallback, either may have applied it: it is unknown.

With --lossless nothing is in doubt. That is right only if no commit was lost: then what
was sent before the failover is on record.`,
		Example: `  drainer history accept --reason "restored from the backup of 12:00"
  drainer history accept --lossless --reason "the standby was synchronous"`,
		Args: cobra.NoArgs,
	}, func(command *cobra.Command, console *operator.Console, args []string, by operator.Signature) error {
		histories, err := console.Histories(command.Context())
		if err != nil {
			return err
		}
		accepted := false
		if len(histories) > 0 {
			if accepted, err = console.AcceptHistory(command.Context(), histories[0].History, lossless, by); err != nil {
				return err
			}
		}
		if !accepted {
			return errors.New("the database's history is accepted already; nothing was changed")
		}
		return options.printHistories(command, console, args)
	})
	command.Flags().BoolVar(&lossless, "lossless", false, "no commit was lost, so nothing is in doubt")
	return command
}

func (o *options) printHistories(command *cobra.Command, console *operator.Console, _ []string) error {
	histories, err := console.Histories(command.Context())
	if err != nil {
		return err
	}
	return o.print(command, histories, historyTable(histories))
}

func historyTable(histories []operator.History) table {
	heading := []string{"HISTORY", "TIMELINE", "LSN", "BEGAN", "SEEN", "CHANGE", "AWAITED", "LOST", "ACCEPTED BY", "REASON"}
	return tableOf(heading, histories, func(h operator.History) []any {
		return []any{h.History, h.Timeline, h.LSN, h.BeganAt, h.SeenAt, h.Change, h.Awaited, h.Lost, h.AcceptedBy, h.Reason}
	})
}
