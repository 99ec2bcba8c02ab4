package cli

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// promises are those of the configuration; nil where there is none that can be read. What
// is shown of a row must not depend on it.
func (o *options) promises(command *cobra.Command) operator.PolicyOf {
	promises, err := o.policies(command)
	if err != nil {
		return nil
	}
	return promises
}

// printNext writes the commands that fit, as they are to be typed here.
func (o *options) printNext(to io.Writer, about string, steps []operator.Step) error {
	if len(steps) == 0 {
		return nil
	}
	s := screenOf(to)
	if o.databaseURL != "" {
		about += ", with the same --database-url"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\n", s.paint("Next"+about+":", bold))
	for _, step := range steps {
		fmt.Fprintf(&text, "  %s\n", o.here(step.Command))
		for _, line := range s.fold(step.When, 6) {
			fmt.Fprintf(&text, "      %s\n", line)
		}
	}
	return s.write(text.String())
}

// here is a command with the configuration of this one.
func (o *options) here(command string) string {
	if o.configPath == "" {
		return command
	}
	return command + " --config " + shellWord(o.configPath)
}

var plainWord = regexp.MustCompile(`^[\w./:@%+=,-]+$`)

func shellWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
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

func newIncidentsShow(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "show INCIDENT",
		Short: "Show one incident, and what to do about it",
		Example: `  drainer incidents show 7 --config drainer.yaml
  drainer incidents show 7 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			ids, err := incidentIDs(command, args)
			if err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				incident, err := console.Incident(command.Context(), ids[0])
				if err != nil {
					return err
				}
				return options.printIncident(command.Context(), command, console, incident)
			})
		},
	}
}

func (o *options) printIncident(ctx context.Context, command *cobra.Command, console *operator.Console, i operator.Incident) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, i)
	}
	err := details{
		{"incident", i.IncidentID},
		{"kind", i.Kind},
		{"means", incident.Kind(i.Kind).Means()},
		{"state", state(i.State)},
		{"intent", i.IntentID},
		{"run", i.AgentRunID},
		{"tool", i.ToolName},
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
	steps, err := console.NextForIncident(ctx, i, o.promises(command))
	if err != nil {
		return err
	}
	return o.printNext(out, "", steps)
}
