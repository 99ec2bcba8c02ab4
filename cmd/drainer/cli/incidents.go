package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

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
		Long:  "list shows what is to be decided. With --provider or --tool a page looks at the newest 25,000\nincidents; with --all and --kind together, at 100,000. The end of the page has the\ncommand that goes on.\n\n" + incidentsHelp,
		Example: `  drainer incidents list
  drainer incidents list --kind outcome_unknown --provider stripe
  drainer incidents list --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := isKind(command, filter.Kind); err != nil {
				return err
			}
			if filter.Limit < 1 {
				return usagef(command, "--limit must be at least 1")
			}
			return options.withConsole(command, func(console *operator.Console) error {
				page, err := console.Incidents(command.Context(), filter)
				if err != nil {
					return err
				}
				if err := options.print(command, page.Incidents, tableOf(incidentHeading, page.Incidents, incidentRow)); err != nil {
					return err
				}
				if page.After != 0 {
					options.printMore(command, strconv.FormatInt(page.After, 10), page.Looked)
				}
				if options.output == jsonOutput {
					return nil
				}
				return options.printNextOfList(command, console, page.Incidents)
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

func isKind(command *cobra.Command, kind string) error {
	if kind == "" || slices.Contains(incident.Kinds(), incident.Kind(kind)) {
		return nil
	}
	return usagef(command, "--kind: there is no such kind; want one of %s", kindNames())
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

// intentOf returns the incident's intent, or "" if it has none.
func intentOf(i operator.Incident) any {
	if i.IntentID == 0 {
		return ""
	}
	return i.IntentID
}

func newIncidentsAck(options *options) *cobra.Command {
	var by operator.Signature
	var yes bool
	many := operator.IncidentFilter{Open: true}
	command := &cobra.Command{
		Use:   "ack [INCIDENT...]",
		Short: "Acknowledge incidents, which ends their pages",
		Long: `ack ends the pages, and sends the channels the operator's name. It resolves incidents
of the kinds key_collision, refused_intent and first_replay, which were over when they
happened. The others stay unresolved until their cause is gone. If it comes back, the
incident is opened and paged again.

Name incidents by their numbers. Or choose the open ones by --kind and --provider, as
a page about many does: that shows them, changes nothing, and prints the command that
does it. Its --since and --until leave out incidents that you were not shown.

The operator and the reason are stored with the incident. The exit code is 1 if one
of them could not be acknowledged.`,
		Example: `  drainer incidents ack 7 --reason "asking the provider"
  drainer incidents ack 7 8 9 --reason "same outage, ticket 4711" --operator on-call

  # all that an outage opened: look first, then do it
  drainer incidents ack --kind outcome_unknown --provider stripe
  drainer incidents ack --kind outcome_unknown --provider stripe --until 2026-01-31T15:04:05Z --yes --reason "ticket 4711"`,
		Args: areIncidents,
		RunE: func(command *cobra.Command, args []string) error {
			if err := filled(command, "kind", "provider"); err != nil {
				return err
			}
			bulk := many.Kind != "" || many.Provider != ""
			isBounded := !many.Since.IsZero() || !many.Until.IsZero()
			if bulk == (len(args) > 0) || isBounded && !bulk {
				return usagef(command, "name incidents by their numbers, or choose them by --kind or --provider, and not both")
			}
			if bulk && yes && many.Until.IsZero() {
				return usagef(command, "--yes needs --until, so that it acknowledges only what you were shown: without --yes, the whole command is printed")
			}
			if err := isKind(command, many.Kind); err != nil {
				return err
			}
			if !bulk || yes {
				if err := sign(command, &by); err != nil {
					return err
				}
			}
			return options.withConsole(command, func(console *operator.Console) error {
				if bulk {
					return options.acknowledgeMany(command, console, many, yes, by)
				}
				incidents, err := incidentIDs(command, args)
				if err != nil {
					return err
				}
				done, err := console.Acknowledge(command.Context(), by, incidents, time.Time{})
				if len(done) > 0 { // show also the changes that were committed before an error
					err = errors.Join(err, options.printAcknowledgements(command, done))
				}
				return err
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&many.Kind, "kind", "", "in bulk: only this `kind`: "+kindNames())
	flags.StringVar(&many.Provider, "provider", "", "in bulk: only of this `provider`")
	timeFlags(command, "opened", &many.Since, &many.Until)
	flags.BoolVar(&yes, "yes", false, "in bulk: do it, instead of showing what would be done")
	signatureFlags(command, &by)
	return command
}

// manyIncidents is the output of ack in bulk.
type manyIncidents struct {
	DryRun    bool                     `json:"dry_run"`
	More      bool                     `json:"more"`            // the limit left some out
	Since     *time.Time               `json:"since,omitempty"` // Since and Until are the bounds of the incidents that a dry run shows
	Until     *time.Time               `json:"until,omitempty"`
	Incidents []operator.Acknowledging `json:"incidents"`
}

func (o *options) acknowledgeMany(command *cobra.Command, console *operator.Console, many operator.IncidentFilter, yes bool, by operator.Signature) error {
	ctx := command.Context()
	var open []operator.Incident
	more := true
	for more && len(open) < operator.MaxSelection { // a page may be empty, since it looks at a bounded number of incidents
		many.Limit = operator.MaxSelection - len(open)
		page, err := console.Incidents(ctx, many)
		if err != nil {
			return err
		}
		open, many.After, more = append(open, page.Incidents...), page.After, page.After != 0
	}
	ids := make([]int64, len(open))
	for i := range open {
		ids[i] = open[i].IncidentID
	}
	each, err := console.PreviewAcknowledge(ctx, ids)
	if err != nil {
		return err
	}
	out, after := manyIncidents{DryRun: !yes, More: more}, "WOULD BE"
	if yes {
		var done []operator.Acknowledgement
		done, err = console.Acknowledge(ctx, by, ids, many.Until) // changes that were committed before an error are shown as well
		each = each[:len(done)]                                   // both are in the order of the ids
		for i, a := range done {
			each[i].After, each[i].Refused = a.State, a.Refused
		}
		after = "AFTER"
	} else if len(open) > 0 {
		since, until := open[len(open)-1].OpenedAt.UTC(), open[0].OpenedAt.UTC().Add(time.Microsecond) // Postgres has no shorter time
		out.Since, out.Until = &since, &until
	}
	out.Incidents = each
	counts := make(map[string]int)
	for _, a := range each {
		if a.Refused != "" {
			a.After = "refused"
		}
		counts[a.After]++
	}
	note := fmt.Sprintf("%d acknowledged, %d resolved, %d refused.", counts["acknowledged"], counts["resolved"], counts["refused"])
	switch {
	case len(open) == 0:
		note = "No such incident is open."
	case !yes:
		with := []string{"--since", out.Since.Format(time.RFC3339Nano), "--until", out.Until.Format(time.RFC3339Nano), "--yes"}
		if by.Reason == "" {
			with = append(with, "--reason", "TEXT")
		}
		note = fmt.Sprintf("%d would be acknowledged, %d resolved. Nothing has changed yet. To do it:\n  %s",
			counts["acknowledged"], counts["resolved"], again(command, with...))
	}
	if more {
		note += "\nThere are more, which are older: repeat the look afterwards."
	}
	shown := tableOf([]string{"INCIDENT", "KIND", after, "INTENT", "RUN", "TOOL", "DETAIL", "OPENED", "REFUSED BECAUSE"}, each, func(a operator.Acknowledging) []any {
		return []any{a.IncidentID, a.Kind, state(a.After), intentOf(a.Incident), a.AgentRunID, a.ToolName, a.Detail, a.OpenedAt, a.Refused}
	})
	if err := errors.Join(err, o.print(command, out, shown)); err != nil {
		return err
	}
	if o.output == tableOutput {
		fmt.Fprintln(command.OutOrStdout(), "\n"+note)
	}
	if refused := counts["refused"]; yes && refused > 0 {
		return fmt.Errorf("%d of %d incidents were refused; the list says why", refused, len(open))
	}
	return nil
}

// areIncidents checks the numbers before the command connects to the database.
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

func acknowledgements(done []operator.Acknowledgement) table {
	return tableOf([]string{"INCIDENT", "KIND", "STATE", "REFUSED BECAUSE"}, done, func(a operator.Acknowledgement) []any {
		return []any{a.IncidentID, a.Kind, a.State, a.Refused}
	})
}

func (o *options) printAcknowledgements(command *cobra.Command, done []operator.Acknowledgement) error {
	var refused []string
	for _, a := range done {
		if a.Refused != "" {
			refused = append(refused, fmt.Sprintf("incident %d: %s", a.IncidentID, a.Refused))
		}
	}
	if err := o.print(command, done, acknowledgements(done)); err != nil {
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

// printNextOfList prints the next steps for one incident: the newest that is open, or else the newest that is not
// resolved.
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
