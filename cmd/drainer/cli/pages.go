package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/internal/duration"
)

// instant is a flag: how long ago, or when.
type instant struct {
	at   *time.Time
	text string
}

var errInstant = errors.New("want how long ago, such as 2h or 7d, or a time, such as 2026-01-31, \"2026-01-31 15:04\" or 2026-01-31T15:04:05Z")

func (i *instant) Set(text string) error {
	i.text = text
	if ago, err := duration.Parse(text); err == nil && ago >= 0 {
		*i.at = time.Now().Add(-ago)
		return nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			*i.at = at
			return nil
		}
	}
	return errInstant
}

func (i *instant) String() string { return i.text }

func (i *instant) Type() string { return "time" }

func timeFlags(command *cobra.Command, what string, since, until *time.Time) {
	flags := command.Flags()
	flags.Var(&instant{at: since}, "since", "only those "+what+" at this `time` or later: 2h, 7d, or 2026-01-31T15:04:05Z")
	flags.Var(&instant{at: until}, "until", "only those "+what+" before this `time`")
}

// printMore says how a listing goes on, behind a row with this cursor. It stands apart from JSON.
func (o *options) printMore(command *cobra.Command, cursor string, bounded bool) {
	to := command.OutOrStdout()
	if o.output == jsonOutput {
		to = command.ErrOrStderr()
	}
	note := "More:"
	if bounded {
		note = fmt.Sprintf("No index serves these filters: only the newest %d rows were looked at. For older ones:", operator.MostLooked)
	}
	fmt.Fprintf(to, "\n%s\n  %s\n", note, nextPage(command, cursor))
}

// nextPage is the command line again, with another cursor.
func nextPage(command *cobra.Command, cursor string) string {
	words := []string{command.CommandPath()}
	command.Flags().Visit(func(flag *pflag.Flag) {
		switch {
		case flag.Name == "cursor" || flag.Name == "database-url": // its URL may hold a password
		case flag.Value.String() == "true":
			words = append(words, "--"+flag.Name)
		default:
			words = append(words, "--"+flag.Name, shellWord(flag.Value.String()))
		}
	})
	return strings.Join(append(words, "--cursor", shellWord(cursor)), " ")
}

// cutPage leaves out the row that says that there are more.
func cutPage[T any](rows []T, limit int) (page []T, more bool) {
	return rows[:min(limit, len(rows))], len(rows) > limit
}
