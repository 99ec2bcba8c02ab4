package cli

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIncidentsAck(options *options) *cobra.Command {
	var by operator.Signature
	command := &cobra.Command{
		Use:   "ack INCIDENT...",
		Short: "Say that you have these incidents, so that nobody is paged for them",
		Long: `ack ends the paging, and tells the pagers who has it. It decides nothing: that is
for intents resolve, intents retry, sagas retry and sagas resolve, which resolve
the incident as well. An incident whose cause comes back is opened, and pages,
again.

Who acknowledged it and why is kept with the incident. The exit code is 1 if one of
them could not be acknowledged.`,
		Example: `  drainer incidents ack 7 --reason "asking the provider"
  drainer incidents ack 7 8 9 --reason "same outage, ticket 4711" --operator on-call`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			by.Operator = cmp.Or(by.Operator, os.Getenv("USER"))
			if err := by.Validate(); err != nil {
				return usagef(command, "say who has it and why, with --operator and --reason: %w", err)
			}
			incidents, err := incidentIDs(command, args)
			if err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				done, err := console.Acknowledge(command.Context(), by, incidents)
				if err != nil {
					return err
				}
				return options.printAcknowledgements(command, done)
			})
		},
	}
	command.Flags().StringVar(&by.Reason, "reason", "", "why, for the record: `text`")
	command.Flags().StringVar(&by.Operator, "operator", "", "who, for the record: `name` (default: $USER)")
	return command
}

func incidentIDs(command *cobra.Command, args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil {
			return nil, usagef(command, "%q is no incident's number; list shows them", arg)
		}
		ids[i] = id
	}
	return ids, nil
}

func (o *options) printAcknowledgements(command *cobra.Command, done []operator.Acknowledgement) error {
	rows := make([][]string, len(done))
	var refused []string
	for i, a := range done {
		rows[i] = []string{strconv.FormatInt(a.IncidentID, 10), a.Kind, a.State, a.Refused}
		if a.Refused != "" {
			refused = append(refused, fmt.Sprintf("incident %d: %s", a.IncidentID, a.Refused))
		}
	}
	if err := o.print(command, done, []string{"INCIDENT", "KIND", "STATE", "REFUSED BECAUSE"}, rows); err != nil {
		return err
	}
	if len(refused) > 0 {
		return fmt.Errorf("not acknowledged: %s", strings.Join(refused, "; "))
	}
	return nil
}
