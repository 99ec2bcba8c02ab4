package cli

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
)

func newRuns(options *options) *cobra.Command {
	command := group("runs", "Show an agent run, or stop it")
	command.AddCommand(newRunsShow(options), newRunsCancel(options))
	return command
}

func newRunsShow(options *options) *cobra.Command {
	var timeline bool
	command := &cobra.Command{
		Use:   "show RUN",
		Short: "Show the steps of an agent run and their undos",
		Long: `show lists the steps of a run, with their undos. With --timeline it draws a line for
each, from its enqueue to its end, and the undos below: what the console shows as
/runs/RUN. It shows the first 500 intents of a run and their first 5,000 attempts.`,
		Example: `  drainer runs show run-001
  drainer runs show run-001 --timeline
  drainer runs show run-001 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: options.onOutbox(func(command *cobra.Command, console *operator.Console, args []string) error {
			story, err := console.Story(command.Context(), args[0])
			if err != nil {
				return err
			}
			return options.printRun(command, story, timeline)
		}),
	}
	command.Flags().BoolVar(&timeline, "timeline", false, "draw each intent's time")
	return command
}

func (o *options) printRun(command *cobra.Command, story *operator.RunStory, timeline bool) error {
	out := command.OutOrStdout()
	if o.output == jsonOutput {
		return printJSON(out, story)
	}
	if story.Saga != nil {
		if err := sagaTable(*story.Saga).print(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	if timeline {
		s := screenOf(out)
		if err := s.write(drawTimeline(s, story)); err != nil {
			return err
		}
	} else if err := stepTable(story.Steps).print(out); err != nil {
		return err
	}
	if story.Truncated {
		fmt.Fprintln(out, "\nThis run is longer: these are its first steps and attempts.")
	}
	for _, wait := range story.WaitsFor {
		fmt.Fprintln(out, "\n"+waitNote(wait))
	}
	return nil
}

func newRunsCancel(options *options) *cobra.Command {
	var compensate bool
	command := options.signed(&cobra.Command{
		Use:   "cancel RUN",
		Short: "Stop an agent run for good: it takes no further step",
		Long: `cancel is a kill switch. From its commit on the run can enqueue nothing more
(SQLSTATE OB002), and no worker claims its steps. Within a second every worker gives
back steps that it has claimed and not yet sent. Waiting steps are cancelled. Requests
in flight end and are recorded. Steps in doubt are looked up and never sent again. This
cannot be reverted.

Completed steps stay as they are. With --compensate they are undone, the newest first,
as if a step had failed. "drainer compensate" does that later.`,
		Example: `  drainer runs cancel run-001 --reason "agent misbehaves"
  drainer runs cancel run-001 --compensate --reason "agent ordered twice"
  drainer intents list --run run-001   # what became of each step`,
		Args: cobra.ExactArgs(1),
	}, func(command *cobra.Command, console *operator.Console, args []string, by operator.Signature) error {
		closed, err := console.CancelRun(command.Context(), args[0], compensate, by)
		if err != nil {
			return err
		}
		return options.print(command, closed, table{
			[]string{"RUN", "STATE", "CANCELLED", "IN PROGRESS", "UNSETTLED", "COMPLETED"},
			[][]any{{closed.AgentRunID, closed.State, closed.Cancelled, closed.InProgress, closed.Unsettled, closed.Completed}},
		})
	})
	command.Flags().BoolVar(&compensate, "compensate", false, "also undo what the run has completed")
	return command
}

// mark draws a part of an intent's time. Without colours, the signs alone distinguish the marks.
type mark struct {
	sign   rune
	colour string
}

var (
	noMark      = mark{sign: ' '}
	markWaiting = mark{sign: '·'}
	markRetried = mark{'▒', "33"}
	markAsked   = mark{'?', "36"}
	markDecided = mark{'|', "35"}
	markApplied = mark{'█', "32"}
	markFailed  = mark{'x', "31"}
	markUnsure  = mark{'!', "33"}
)

func markOf(s operator.Span) mark {
	switch {
	case s.StartedAt == nil:
		return markDecided
	case s.Lookup:
		return markAsked
	case s.NextAttemptAt != nil:
		return markRetried
	case s.Status == "failed" || s.Status == "compensation_failed":
		return markFailed
	case s.Status == "unknown":
		return markUnsure
	}
	return markApplied
}

// drawTimeline draws a line for each intent of a run, from its enqueue to its end: first the steps, and below them
// the undos. So the undo that ran first is at the bottom.
func drawTimeline(s screen, story *operator.RunStory) string {
	var intents []operator.Intent
	for _, step := range story.Steps {
		intents = append(intents, step.Intent)
	}
	for _, step := range story.Steps {
		if step.Undo != nil {
			intents = append(intents, *step.Undo)
		}
	}
	begin, end := intents[0].CreatedAt, intents[0].CreatedAt
	ends := func(i operator.Intent) time.Time {
		if i.FinishedAt != nil {
			return *i.FinishedAt
		}
		return s.now
	}
	names := 0
	labels := make([]string, len(intents))
	for i, intent := range intents {
		if intent.CreatedAt.Before(begin) {
			begin = intent.CreatedAt
		}
		if ends(intent).After(end) {
			end = ends(intent)
		}
		labels[i] = fmt.Sprintf("%d %s", intent.IntentID, printable(intent.ToolName))
		names = max(names, displayWidth(labels[i]))
	}
	columns := cmp.Or(s.columns, 80)
	names = min(names, columns/3)
	width := max(20, columns-names-2)
	at := func(t time.Time) int {
		whole := max(end.Sub(begin), time.Millisecond)
		return min(width-1, max(0, int(float64(t.Sub(begin))/float64(whole)*float64(width))))
	}

	var text strings.Builder
	took := precisely(end.Sub(begin))
	fmt.Fprintf(&text, "%s  0%s%s\n", strings.Repeat(" ", names), strings.Repeat(" ", max(1, width-1-len(took))), took)
	for i, intent := range intents {
		if i == len(story.Steps) {
			text.WriteString(strings.Repeat("─", names+2+width) + "\n")
		}
		line := make([]mark, width)
		for column := range line {
			line[column] = noMark
			if column >= at(intent.CreatedAt) && column <= at(ends(intent)) {
				line[column] = markWaiting
			}
		}
		for _, span := range story.Spans {
			if span.IntentID != intent.IntentID {
				continue
			}
			last := at(span.FinishedAt)
			first := last
			if span.StartedAt != nil {
				first = at(*span.StartedAt)
			}
			for column := first; column <= last; column++ {
				line[column] = markOf(span)
			}
		}
		label := labels[i]
		if displayWidth(label) > names {
			for displayWidth(label) > names-1 {
				runes := []rune(label)
				label = string(runes[:len(runes)-1])
			}
			label += "…"
		}
		text.WriteString(label + strings.Repeat(" ", names-displayWidth(label)+2) + s.paintLine(line) + "\n")
	}
	text.WriteString(s.legend() + "\n")
	return text.String()
}

// precisely formats a duration of a timeline. Below 100 seconds it is exact to the millisecond.
func precisely(d time.Duration) string {
	if d < 100*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return roughly(d)
}

// paintLine paints neighbouring marks of one colour together. It drops spaces at the end.
func (s screen) paintLine(line []mark) string {
	for len(line) > 0 && line[len(line)-1] == noMark {
		line = line[:len(line)-1]
	}
	var text strings.Builder
	for len(line) > 0 {
		same := 0
		var signs strings.Builder
		for same < len(line) && line[same].colour == line[0].colour {
			signs.WriteRune(line[same].sign)
			same++
		}
		text.WriteString(s.paint(signs.String(), line[0].colour))
		line = line[same:]
	}
	return text.String()
}

func (s screen) legend() string {
	var parts []string
	for _, entry := range []struct {
		mark
		means string
	}{{markApplied, "applied"}, {markRetried, "tried again"}, {markAsked, "lookup"}, {markFailed, "failed"}, {markUnsure, "in doubt"}, {markDecided, "decided"}, {markWaiting, "waiting"}} {
		parts = append(parts, s.paint(string(entry.sign), entry.colour)+" "+entry.means)
	}
	return strings.Join(parts, "  ")
}
