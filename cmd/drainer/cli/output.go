package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

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
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	if err := columns.Flush(); err != nil {
		return fmt.Errorf("printing a table: %w", err)
	}
	return nil
}
