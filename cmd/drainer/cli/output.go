package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/internal/duration"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	tableOutput outputFormat = "table"
	jsonOutput  outputFormat = "json"
)

func (f *outputFormat) Set(text string) error {
	switch format := outputFormat(text); format {
	case tableOutput, jsonOutput:
		*f = format
		return nil
	}
	return fmt.Errorf("want table or json")
}

func (f *outputFormat) String() string { return string(*f) }

func (f *outputFormat) Type() string { return "format" }

// print writes the value as JSON, or the table.
func (o *options) print(command *cobra.Command, value any, shown table) error {
	if o.output == jsonOutput {
		return printJSON(command.OutOrStdout(), value)
	}
	return shown.print(command.OutOrStdout())
}

func printJSON(to io.Writer, value any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return nil
}

// printable escapes characters that would move the cursor or control the terminal. Agents choose the names of tools
// and runs.
func printable(text string) string {
	if !strings.ContainsFunc(text, isUnprintable) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if isUnprintable(r) {
			shown.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		shown.WriteRune(r)
	}
	return shown.String()
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

func signatureFlags(command *cobra.Command, signature *operator.Signature) {
	flags := command.Flags()
	flags.StringVar(&signature.Reason, "reason", "", "why, for the history: `text`")
	flags.StringVar(&signature.Operator, "operator", "", "who, for the history: `name` (default: $USER, then the system's)")
}

// sign completes a signature, or returns an error that names the missing flag.
func sign(command *cobra.Command, signature *operator.Signature) error {
	signature.Operator = cmp.Or(strings.TrimSpace(signature.Operator), strings.TrimSpace(os.Getenv("USER")), systemUser())
	var missing []error
	if signature.Operator == "" {
		missing = append(missing, errors.New("--operator is empty, and neither $USER nor the system has your name; add --operator NAME"))
	}
	if strings.TrimSpace(signature.Reason) == "" {
		missing = append(missing, errors.New("--reason is empty; add --reason TEXT"))
	}
	if len(missing) > 0 {
		return usagef(command, "%w", errors.Join(missing...))
	}
	if err := signature.Validate(); err != nil {
		return usagef(command, "--operator, --reason: %w", err)
	}
	return nil
}

// systemUser returns the name of the system's user. It returns "" in a container whose user has no entry in
// /etc/passwd.
func systemUser() string {
	current, err := user.Current()
	if err != nil {
		return ""
	}
	return current.Username
}

// instant is a flag for a time: how long ago, or a point in time.
type instant struct {
	at   *time.Time
	text string
}

func (i *instant) Set(text string) (err error) {
	i.text = text
	*i.at, err = duration.Instant(text, time.Now(), time.Local)
	return err
}

func (i *instant) String() string { return i.text }

func (i *instant) Type() string { return "time" }

func timeFlags(command *cobra.Command, what string, since, until *time.Time) {
	flags := command.Flags()
	flags.Var(&instant{at: since}, "since", "only those "+what+" at this `time` or later: 2h, 7d, or 2026-01-31T15:04:05+01:00; a date without a zone is in this machine's")
	flags.Var(&instant{at: until}, "until", "only those "+what+" before this `time`")
}

// printMore prints the command for the rest of a listing, after the row with this cursor. With -o json it writes to
// standard error.
func (o *options) printMore(command *cobra.Command, cursor string, looked int) {
	to := command.OutOrStdout()
	if o.output == jsonOutput {
		to = command.ErrOrStderr()
	}
	note := "More:"
	if looked > 0 {
		note = fmt.Sprintf("No index serves these filters: only the newest %d rows were looked at. For older ones:", looked)
	}
	fmt.Fprintf(to, "\n%s\n  %s\n", note, again(command, "--cursor", cursor))
}

// again returns the command line, with these words in place of the flags that they name.
func again(command *cobra.Command, with ...string) string {
	words := []string{command.CommandPath()}
	command.Flags().Visit(func(flag *pflag.Flag) {
		switch {
		case flag.Name == "database-url" || slices.Contains(with, "--"+flag.Name): // a database URL may contain a password
		case flag.Value.String() == "true":
			words = append(words, "--"+flag.Name)
		default:
			words = append(words, "--"+flag.Name, shellWord(flag.Value.String()))
		}
	})
	for _, word := range with {
		words = append(words, shellWord(word))
	}
	return strings.Join(words, " ")
}

// filled refuses a flag whose value is empty, for example because a shell variable is not set. An empty filter would
// select more.
func filled(command *cobra.Command, names ...string) error {
	for _, name := range names {
		if flag := command.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return usagef(command, "--%s is empty; leave it out, or give it a value", name)
		}
	}
	return nil
}

// cutPage removes the extra row that shows that there are more.
func cutPage[T any](rows []T, limit int) (page []T, more bool) {
	return rows[:min(limit, len(rows))], len(rows) > limit
}

// promises returns the tools' policies, or nil if there is no configuration or it cannot be read. An unreadable
// configuration must not prevent the output of a row.
func (o *options) promises(command *cobra.Command) operator.PolicyOf {
	promises, err := o.policies(command)
	if err != nil {
		return nil
	}
	return promises
}

// printNext prints the suggested commands, with the flags that this command was given.
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

// here returns a command with the configuration of this one.
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
