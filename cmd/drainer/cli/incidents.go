package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIncidents(options *options) *cobra.Command {
	command := group("incidents", "List, show and acknowledge incidents")
	command.AddCommand(newIncidentsList(options), newIncidentsShow(options), newIncidentsAck(options))
	return command
}

const incidentsHelp = `An incident is a decision that only a human can make. While it is open, the channels
under pages in the configuration that match it are told, repeatedly: with one page
for all that are open of one kind at one provider.

  open          it is paged
  acknowledged  an operator works on it; it is not paged
  resolved      its cause is gone: the intent or its saga was retried or resolved,
                the provider is configured, the collision is acknowledged`

func newIncidentsList(options *options) *cobra.Command {
	var filter operator.IncidentFilter
	command := &cobra.Command{
		Use:   "list",
		Short: "List incidents that are not resolved, the newest first",
		Long:  "list shows what is to be decided.\n\n" + incidentsHelp,
		Example: `  drainer incidents list
  drainer incidents list --kind outcome_unknown --provider stripe
  drainer incidents list --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case filter.Kind != "" && !slices.Contains(incident.Kinds(), incident.Kind(filter.Kind)):
				return usagef(command, "--kind: there is no such kind; want one of %s", kindNames())
			case filter.Limit < 1:
				return usagef(command, "--limit must be at least 1")
			}
			return options.withConsole(command, func(console *operator.Console) error {
				limit, oneMore := filter.Limit, filter
				oneMore.Limit++
				found, err := console.Incidents(command.Context(), oneMore)
				if err != nil {
					return err
				}
				incidents, more := cutPage(found, limit)
				if err := options.print(command, incidents, tableOf(incidentHeading, incidents, incidentRow)); err != nil {
					return err
				}
				if more {
					options.printMore(command, strconv.FormatInt(incidents[limit-1].IncidentID, 10), false)
				}
				if options.output == jsonOutput {
					return nil
				}
				return options.printNextOfList(command, console, incidents)
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&filter.All, "all", false, "the resolved ones as well")
	flags.StringVar(&filter.Kind, "kind", "", "only this `kind`: "+kindNames())
	flags.StringVar(&filter.Provider, "provider", "", "only of this `provider`")
	flags.StringVar(&filter.Tool, "tool", "", "only this tool's, by `name`: provider/operation")
	timeFlags(command, "opened", &filter.Since, &filter.Until)
	flags.Int64Var(&filter.After, "cursor", 0, "only those that follow this `incident`: the end of a page says which")
	flags.IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
}

func kindNames() string {
	names := make([]string, len(incident.Kinds()))
	for i, kind := range incident.Kinds() {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

var incidentHeading = []string{"INCIDENT", "KIND", "STATE", "INTENT", "RUN", "TOOL", "DETAIL", "OPENED", "PAGED", "BY", "REASON"}

func incidentRow(i operator.Incident) []any {
	return []any{
		i.IncidentID, i.Kind, state(i.State), intentOf(i), i.AgentRunID, i.ToolName, i.Detail, i.OpenedAt,
		i.PagedAt, cmp.Or(i.ResolvedBy, i.AcknowledgedBy), i.Reason,
	}
}

// intentOf is empty where an incident is about no intent.
func intentOf(i operator.Incident) any {
	if i.IntentID == 0 {
		return ""
	}
	return i.IntentID
}

func newIncidentsAck(options *options) *cobra.Command {
	return options.signed(&cobra.Command{
		Use:   "ack INCIDENT...",
		Short: "Acknowledge incidents, which ends their pages",
		Long: `ack ends the pages, and sends the channels the operator's name. It does not resolve
the incident: intents resolve, intents retry, sagas retry and sagas resolve do. If its
cause comes back, the incident is opened and paged again.

The operator and the reason are stored with the incident. The exit code is 1 if one
of them could not be acknowledged.`,
		Example: `  drainer incidents ack 7 --reason "asking the provider"
  drainer incidents ack 7 8 9 --reason "same outage, ticket 4711" --operator on-call`,
		Args: cobra.MatchAll(cobra.MinimumNArgs(1), areIncidents),
	}, func(command *cobra.Command, console *operator.Console, args []string, by operator.Signature) error {
		incidents, err := incidentIDs(command, args)
		if err != nil {
			return err
		}
		done, err := console.Acknowledge(command.Context(), by, incidents)
		if err != nil {
			return err
		}
		return options.printAcknowledgements(command, done)
	})
}

// areIncidents finds a typo before anything is connected to.
func areIncidents(command *cobra.Command, args []string) error {
	_, err := incidentIDs(command, args)
	return err
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
	var refused []string
	for _, a := range done {
		if a.Refused != "" {
			refused = append(refused, fmt.Sprintf("incident %d: %s", a.IncidentID, a.Refused))
		}
	}
	heading := []string{"INCIDENT", "KIND", "STATE", "REFUSED BECAUSE"}
	if err := o.print(command, done, tableOf(heading, done, func(a operator.Acknowledgement) []any {
		return []any{a.IncidentID, a.Kind, a.State, a.Refused}
	})); err != nil {
		return err
	}
	if len(refused) > 0 {
		return fmt.Errorf("not acknowledged: %s", strings.Join(refused, "; "))
	}
	return nil
}

func newIncidentsShow(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show INCIDENT",
		Short: "Show one incident, and what to do about it",
		Example: `  drainer incidents show 7 --config drainer.yaml
  drainer incidents show 7 -o json`,
		Args: cobra.MatchAll(cobra.ExactArgs(1), areIncidents),
		RunE: options.onOutbox(func(command *cobra.Command, console *operator.Console, args []string) error {
			ids, err := incidentIDs(command, args)
			if err != nil {
				return err
			}
			incident, err := console.Incident(command.Context(), ids[0])
			if err != nil {
				return err
			}
			return options.printIncident(command, console, incident)
		}),
	}
}

func (o *options) printIncident(command *cobra.Command, console *operator.Console, i operator.Incident) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, i)
	}
	err := details{
		{"incident", i.IncidentID},
		{"kind", i.Kind},
		{"means", incident.Kind(i.Kind).Means()},
		{"state", state(i.State)},
		{"intent", intentOf(i)},
		{"run", i.AgentRunID},
		{"tool", cmp.Or(deref(i.ToolName), "none: "+i.NoTool())},
		{"detail", i.Detail},
		{"opened", i.OpenedAt},
		{"times opened", i.Generation},
		{"paged last", i.PagedAt},
		{"acknowledged", i.AcknowledgedAt},
		{"acknowledged by", i.AcknowledgedBy},
		{"reason", i.Reason},
		{"resolved", i.ResolvedAt},
		{"resolved by", i.ResolvedBy},
	}.print(out)
	if err != nil {
		return err
	}
	steps, err := console.NextForIncident(command.Context(), i, o.promises(command))
	if err != nil {
		return err
	}
	return o.printNext(out, "", steps)
}

// printNextOfList is for the incident to take first: the newest that is open, else the
// newest that is not resolved.
func (o *options) printNextOfList(command *cobra.Command, console *operator.Console, incidents []operator.Incident) error {
	var first *operator.Incident
	for i, incident := range incidents {
		if incident.State == "open" && (first == nil || first.State != "open") || first == nil && incident.State != "resolved" {
			first = &incidents[i]
		}
	}
	if first == nil {
		return nil
	}
	steps, err := console.NextForIncident(command.Context(), *first, o.promises(command))
	if err != nil {
		return err
	}
	if len(incidents) > 1 {
		steps = append(steps, operator.Step{Command: "drainer incidents show ID", When: "to see the same of another incident"})
	}
	return o.printNext(command.OutOrStdout(), fmt.Sprintf(" for incident %d", first.IncidentID), steps)
}
