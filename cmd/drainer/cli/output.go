package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/drainer/operator"
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

// table is a heading, and rows of what cell can show.
type table struct {
	heading []string
	rows    [][]any
}

func tableOf[T any](heading []string, items []T, row func(T) []any) table {
	t := table{heading: heading, rows: make([][]any, len(items))}
	for i, item := range items {
		t.rows[i] = row(item)
	}
	return t
}

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

func (t table) print(to io.Writer) error {
	columns := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, strings.Join(t.heading, "\t"))
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = printable(cell(value))
		}
		fmt.Fprintln(columns, strings.Join(cells, "\t"))
	}
	if err := columns.Flush(); err != nil {
		return fmt.Errorf("printing a table: %w", err)
	}
	return nil
}

// cell shows nothing for a nil pointer, and times in the reader's zone.
func cell(value any) string {
	switch v := value.(type) {
	case *string:
		return optional(v)
	case *int:
		return optional(v)
	case *int64:
		return optional(v)
	case *time.Time:
		return optional(v)
	case time.Time:
		return v.Local().Format(time.DateTime)
	}
	return fmt.Sprint(value)
}

func optional[T any](value *T) string {
	if value == nil {
		return ""
	}
	return cell(*value)
}

// printable writes out what would move the cursor, or command the terminal:
// agents choose the names of tools and runs.
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
	flags.StringVar(&signature.Operator, "operator", "", "who, for the history: `name` (default: $USER)")
}

// sign completes a signature, or says which flag is missing.
func sign(command *cobra.Command, signature *operator.Signature) error {
	signature.Operator = cmp.Or(strings.TrimSpace(signature.Operator), strings.TrimSpace(os.Getenv("USER")))
	var missing []error
	if signature.Operator == "" {
		missing = append(missing, errors.New("--operator is empty and $USER is not set; add --operator NAME"))
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
