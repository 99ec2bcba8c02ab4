package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/agentoutbox/drainer/integration/fault"
)

// printTable reports whether each case was injected and held.
func printTable(to io.Writer, cases []fault.Case, found *findings) bool {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tFAULT\tINJECTED\tCHECKED\tVERDICT")
	injected, fine := 0, true
	for _, c := range cases {
		times, held := found.of(c)
		verdict := "held"
		switch {
		case times == 0:
			verdict, fine = "NOT INJECTED", false
		case !held:
			verdict, fine = "BROKEN", false
		}
		if times > 0 {
			injected++
		}
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s\n", c.Number, c.Fault, times, c.Checked, verdict)
	}
	_ = table.Flush()
	fmt.Fprintf(to, "\n%d of %d cases were injected.\n", injected, len(cases))
	return fine
}
