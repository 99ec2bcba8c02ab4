// Report runs the tests that inject the catalogue's faults, and prints what
// each case came to. It ends with 1 unless every case held.
//
//	go run ./integration/fault/report [-case 13]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"github.com/agentoutbox/drainer/integration/fault"
)

func main() {
	only := flag.Int("case", 0, "inject this case alone, by its number")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	cases := fault.Catalogue
	if *only != 0 {
		cases = slices.DeleteFunc(slices.Clone(cases), func(c fault.Case) bool { return c.Number != *only })
	}
	if len(cases) == 0 {
		fmt.Fprintf(os.Stderr, "report: there is no case %d; they are in integration/fault/catalogue.go\n", *only)
		os.Exit(2)
	}
	findings, passed, err := inject(ctx, cases)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	held := printTable(os.Stdout, cases, findings)
	if held && !passed {
		fmt.Fprintln(os.Stderr, "report: every case held, but go test failed; what failed is said above")
	}
	if !held || !passed {
		os.Exit(1)
	}
}
