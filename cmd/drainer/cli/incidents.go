package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/drainer/operator"
)

func newIncidents(options *options) *cobra.Command {
	command := group("incidents", "List what needs a human, and say that you have it")
	command.AddCommand(newIncidentsList(options), newIncidentsAck(options))
	return command
}

const incidentsHelp = `An incident is something that only a human can decide. While it is open, every
channel under pages in the configuration is told of it, again and again.

  open          nobody has it; it pages
  acknowledged  somebody has it; nobody is paged
  resolved      its cause is gone: the intent or its saga was retried or resolved,
                the provider is configured, the collision is acknowledged`

func newIncidentsList(options *options) *cobra.Command {
	var filter operator.IncidentFilter
	command := &cobra.Command{
		Use:   "list",
		Short: "List incidents that are not resolved, those opened last first",
		Long:  "list shows what is to be decided.\n\n" + incidentsHelp,
		Example: `  drainer incidents list
  drainer incidents list --kind outcome_unknown
  drainer incidents list --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch {
			case filter.Kind != "" && !slices.Contains(pages.Kinds(), pages.Kind(filter.Kind)):
				return usagef(command, "--kind: there is no such kind; want one of %s", kindNames())
			case filter.Limit < 1:
				return usagef(command, "--limit must be at least 1")
			}
			return options.withConsole(command, func(console *operator.Console) error {
				incidents, err := console.Incidents(command.Context(), filter)
				if err != nil {
					return err
				}
				return options.print(command, incidents, incidentHeading, incidentRows(incidents))
			})
		},
	}
	flags := command.Flags()
	flags.BoolVar(&filter.All, "all", false, "the resolved ones as well")
	flags.StringVar(&filter.Kind, "kind", "", "only this `kind`: "+kindNames())
	flags.IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
}

func kindNames() string {
	names := make([]string, len(pages.Kinds()))
	for i, kind := range pages.Kinds() {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

var incidentHeading = []string{"INCIDENT", "KIND", "STATE", "INTENT", "RUN", "TOOL", "DETAIL", "OPENED", "PAGED", "BY", "REASON"}

func incidentRows(incidents []operator.Incident) [][]string {
	rows := make([][]string, len(incidents))
	for i, incident := range incidents {
		by := incident.AcknowledgedBy
		if incident.ResolvedBy != nil {
			by = incident.ResolvedBy
		}
		rows[i] = []string{
			strconv.FormatInt(incident.IncidentID, 10), incident.Kind, incident.State, strconv.FormatInt(incident.IntentID, 10),
			incident.AgentRunID, text(incident.ToolName), text(incident.Detail), incident.OpenedAt.Local().Format(time.DateTime),
			moment(incident.PagedAt), text(by), text(incident.Reason),
		}
	}
	return rows
}
