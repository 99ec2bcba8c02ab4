package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	table    outputFormat = "table"
	jsonText outputFormat = "json"
)

func (f *outputFormat) Set(text string) error {
	switch format := outputFormat(text); format {
	case table, jsonText:
		*f = format
		return nil
	}
	return fmt.Errorf("want table or json")
}

func (f *outputFormat) String() string { return string(*f) }

func (f *outputFormat) Type() string { return "format" }

// print writes value as JSON, or a table with a heading and one row a line.
func (o *options) print(command *cobra.Command, value any, heading []string, rows [][]string) error {
	if o.output == jsonText {
		return printJSON(command.OutOrStdout(), value)
	}
	return printTable(command.OutOrStdout(), heading, rows)
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

func printTable(to io.Writer, heading []string, rows [][]string) error {
	columns := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{heading}, rows...) {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(columns, "\t")
			}
			fmt.Fprint(columns, printable(cell))
		}
		fmt.Fprintln(columns)
	}
	if err := columns.Flush(); err != nil {
		return fmt.Errorf("printing a table: %w", err)
	}
	return nil
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
