package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainer/remedy"
)

func newIntents(options *options) *cobra.Command {
	command := group("intents", "List intents, show, retry, cancel or resolve them")
	command.AddCommand(
		newIntentsList(options),
		newIntentsShow(options),
		newIntentsRetry(options),
		newIntentsCancel(options),
		newIntentsResolve(options),
	)
	return command
}

func newIntentsList(options *options) *cobra.Command {
	var filter operator.Filter
	command := &cobra.Command{
		Use:   "list",
		Short: "List intents, the newest first",
		Long: `list shows the newest intents first, and at its end the command for the next page.

It finds intents by run, and by every status but completed, wherever they are; by a
provider's reference, too, after "drainer migrate references on". For the rest it looks
at the newest 100000, and says so if there are more.`,
		Example: `  drainer intents list --dead
  drainer intents list --status unknown --provider stripe
  drainer intents list --tool stripe/create_charge --error timeout --since 2h
  drainer intents list --run run-001 -o json`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := checkFilter(command, filter); err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				page, err := console.List(command.Context(), filter)
				if err != nil {
					return err
				}
				if err := options.print(command, page.Intents, intentTable(page.Intents)); err != nil {
					return err
				}
				if page.Below != 0 {
					looked := 0
					if page.Bounded {
						looked = operator.MostLooked
					}
					options.printMore(command, strconv.FormatInt(page.Below, 10), looked)
				}
				if page.Index != "" {
					fmt.Fprintf(command.ErrOrStderr(), "\n`%s` makes an index for references.\n", page.Index)
				}
				return nil
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&filter.Status, "status", "", "only those with this `status`: "+strings.Join(operator.Statuses, ", "))
	flags.BoolVar(&filter.Dead, "dead", false, "only those that need a human: failed, unknown with no lookup to come, or not undone")
	flags.StringVar(&filter.Provider, "provider", "", "only this provider's, by `name`")
	flags.StringVar(&filter.Tool, "tool", "", "only this tool's, by `name`: provider/operation")
	flags.StringVar(&filter.Error, "error", "", "only those whose last error has this `text` in it")
	flags.Int64Var(&filter.Below, "cursor", 0, "only those with a lower `number`: the end of a page says which")
	timeFlags(command, "enqueued", &filter.Since, &filter.Until)
	flags.StringVar(&filter.Run, "run", "", "only this agent run's, by `id`")
	flags.StringVar(&filter.Scope, "scope", "", "only those with this business `scope`")
	flags.StringVar(&filter.Tenant, "tenant", "", "only this tenant's, by `name`")
	flags.StringVar(&filter.Reference, "reference", "", "only those with this `reference` of the provider's")
	flags.IntVar(&filter.Limit, "limit", 50, "at most this `many`")
	return command
}

func intentTable(intents []operator.Intent) table {
	heading := []string{"INTENT", "STATUS", "TOOL", "RUN", "STEP", "SCOPE", "ATTEMPTS", "CREATED", "NEXT ATTEMPT"}
	return tableOf(heading, intents, func(i operator.Intent) []any {
		attempts := strconv.Itoa(i.Attempts)
		if i.LastOutcome != nil {
			attempts += ", " + *i.LastOutcome
		}
		return []any{i.IntentID, state(i.Status), i.ToolName, i.AgentRunID, i.StepID, i.BusinessScope, attempts, i.CreatedAt, i.NextAttemptAt}
	})
}

// checkFilter reports a mistyped filter, which would otherwise give an empty list.
func checkFilter(command *cobra.Command, filter operator.Filter) error {
	switch {
	case filter.Limit < 1:
		return usagef(command, "--limit must be at least 1")
	case filter.Status != "" && !slices.Contains(operator.Statuses, filter.Status):
		return usagef(command, "--status: there is no such status; want one of %s", strings.Join(operator.Statuses, ", "))
	}
	return nil
}

func newIntentsShow(options *options) *cobra.Command {
	var tuple dispatch.Tuple
	command := &cobra.Command{
		Use:   "show [INTENT]",
		Short: "Show one intent with its payload, response and every attempt, and what to do next",
		Example: `  drainer intents show 42 --config drainer.yaml
  drainer intents show --run run-001 --step step-1 --tool stripe/create_charge --scope invoice_442 -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			intent, err := readReference(command, args, tuple)
			if err != nil {
				return err
			}
			return options.withConsole(command, func(console *operator.Console) error {
				dossier, err := intent.show(command.Context(), console)
				if err != nil {
					return err
				}
				next, err := console.Next(command.Context(), dossier.IntentID, options.promises(command))
				if err != nil {
					return err
				}
				return options.printDossier(command, dossier, next)
			})
		},
	}
	tupleFlags(command, &tuple)
	return command
}

func (o *options) printDossier(command *cobra.Command, d *operator.Dossier, next []operator.Step) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, d)
	}
	var gate operator.Provider
	if d.Gate != nil {
		gate = *d.Gate
		if gate.Paused || gate.Breaker != "open" {
			gate.OpenUntil = nil // a pause has no known end, and a half-open breaker has a probe under way
		}
	}
	err := details{
		{"intent", d.IntentID},
		{"run", d.AgentRunID},
		{"step", d.StepID},
		{"tool", d.ToolName},
		{"scope", d.BusinessScope},
		{"idempotency key", d.IdempotencyKey},
		{"status", state(d.Status)},
		{"created", d.CreatedAt},
		{"finished", d.FinishedAt},
		{"next attempt", d.NextAttemptAt},
		{"waits for", gate.Why()},
		{"tried again", gate.OpenUntil},
		{"provider ref", d.ProviderRef},
		{"payload", string(d.Payload)},
		{"response", string(d.Response)},
	}.print(out)
	if err != nil {
		return err
	}
	history := make([]operator.Event, len(d.History))
	newKeys := false
	for i, attempt := range d.History {
		history[i] = operator.Event{IntentID: d.IntentID, Attempt: attempt}
		newKeys = newKeys || attempt.IdempotencyKey != d.IdempotencyKey
	}
	if err := printHistory(out, history, false, newKeys); err != nil {
		return err
	}
	return o.printNext(out, "", next)
}

// what returns an attempt's outcome. It marks a lookup, which asks about an earlier attempt and sends nothing new.
func what(a operator.Attempt) string {
	if a.Lookup {
		return "lookup: " + a.Outcome
	}
	return a.Outcome
}

// actor returns who made an attempt, and the fallback that served it. An operator's name is only a claim, so the
// login is shown with it.
func actor(a operator.Attempt) string {
	if strings.HasPrefix(a.Worker, "operator:") {
		return a.Worker + " (login " + a.Login + ")"
	}
	if a.ServedBy != nil {
		return a.Worker + " via " + *a.ServedBy
	}
	return a.Worker
}

// reference names one intent: by its key, or by its id if key is zero.
type reference struct {
	id  int64
	key dispatch.Tuple
}

// readReference reads from the command line which intent is meant. It does not read the database.
func readReference(command *cobra.Command, args []string, key dispatch.Tuple) (reference, error) {
	if len(args) == 0 {
		return reference{key: key}, checkKey(command, key)
	}
	if key != (dispatch.Tuple{}) {
		return reference{}, usagef(command, "name an intent by its id or by its key, not by both")
	}
	id, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return reference{}, usagef(command, "an intent's id is a number; `drainer intents list` shows it")
	}
	return reference{id: id}, nil
}

func checkKey(command *cobra.Command, key dispatch.Tuple) error {
	if key == (dispatch.Tuple{}) {
		return usagef(command, "name an intent by its id, or by --run, --step, --tool and --scope")
	}
	var missing []string
	for _, part := range []struct{ flag, value string }{
		{"--run", key.AgentRunID}, {"--step", key.StepID}, {"--tool", key.ToolName}, {"--scope", key.BusinessScope},
	} {
		if part.value == "" {
			missing = append(missing, part.flag)
		}
	}
	if len(missing) > 0 {
		return usagef(command, "an intent's key has four parts; add %s", strings.Join(missing, ", "))
	}
	if err := key.Validate(); err != nil {
		return usagef(command, "%w", err)
	}
	return nil
}

func (r reference) show(ctx context.Context, console *operator.Console) (*operator.Dossier, error) {
	if r.key == (dispatch.Tuple{}) {
		dossier, err := console.Show(ctx, r.id)
		return dossier, r.explain(err)
	}
	dossier, err := console.ShowTuple(ctx, r.key)
	return dossier, r.explain(err)
}

func (r reference) find(ctx context.Context, console *operator.Console) (int64, error) {
	if r.key == (dispatch.Tuple{}) {
		return r.id, nil
	}
	id, err := console.Find(ctx, r.key)
	return id, r.explain(err)
}

// explain names a missing intent in the error. It does not repeat the parts of a key.
func (r reference) explain(err error) error {
	switch {
	case !errors.Is(err, operator.ErrNotFound):
		return err
	case r.key == (dispatch.Tuple{}):
		return fmt.Errorf("%w: %d; `drainer intents list` shows those there are", err, r.id)
	}
	return fmt.Errorf("%w with this key; `drainer intents list` shows those there are", err)
}

// printHistory writes a few lines for each attempt: the outcome, the time, the worker or operator, and the reason.
// For the last attempt it adds the meaning of its error. keys adds the key of each attempt.
func printHistory(to io.Writer, history []operator.Event, ofMany, keys bool) error {
	s := screenOf(to)
	var text strings.Builder
	for i, event := range history {
		a := event.Attempt
		text.WriteString("\n")
		if ofMany {
			fmt.Fprintf(&text, "intent %d, ", event.IntentID)
		}
		fmt.Fprintf(&text, "attempt %d: %s → %s%s\n", a.Attempt, printable(what(a)), s.paint(printable(a.Status), colours[state(a.Status)]), measured(a))
		lines := []string{s.zonedMoment(a.FinishedAt) + ", by " + printable(actor(a))}
		title, detail := readProblem(a.Problem)
		if ofMany {
			detail = ""
		}
		var known remedy.Error
		if i == len(history)-1 && a.Status != string(dispatch.StatusCompleted) {
			known, _ = remedy.OfAttempt(deref(a.Error))
		}
		for _, said := range []struct{ what, text string }{
			{"error", deref(a.Error)},
			{"means", known.Means},
			{"do", known.Do},
			{"problem", title},
			{"detail", detail},
			{"reason", deref(a.Reason)},
		} {
			if said.text != "" {
				lines = append(lines, said.what+": "+printable(said.text))
			}
		}
		if keys {
			lines = append(lines, "key: "+a.IdempotencyKey)
		}
		for _, line := range lines {
			for _, part := range s.fold(line, 2) {
				fmt.Fprintf(&text, "  %s\n", part)
			}
		}
	}
	return s.write(text.String())
}

// measured returns an attempt's HTTP status and duration. A decision of an operator has neither.
func measured(a operator.Attempt) (text string) {
	if a.HTTPStatus != nil {
		text = fmt.Sprintf(", HTTP %d", *a.HTTPStatus)
	}
	if a.StartedAt != nil {
		text += ", took " + a.FinishedAt.Sub(*a.StartedAt).Round(time.Millisecond).String()
	}
	return text
}

// longestDetail is the longest detail of a problem that is shown, in characters. -o json shows all of it.
const longestDetail = 300

// readProblem returns title and detail of a problem document (RFC 9457). The detail may repeat the payload, so it is
// shown only together with the payload.
func readProblem(problem json.RawMessage) (title, detail string) {
	var document struct {
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}
	if json.Unmarshal(problem, &document) != nil {
		return "", ""
	}
	if long := []rune(document.Detail); len(long) > longestDetail {
		document.Detail = string(long[:longestDetail]) + "…"
	}
	return document.Title, document.Detail
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
