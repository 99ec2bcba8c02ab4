package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/contract/manifest"
)

func newVerifyManifest(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "manifest SPEC",
		Short: "Find what an OpenAPI document leaves open about repeated calls",
		Long: `manifest reads the extension x-agent-idempotency of an OpenAPI document, 3.0 or
3.1, JSON or YAML, and reports every violation with its cure: a write that says
nothing, a key without a lifetime, a status or header that the operation itself
does not document. It calls nobody and follows no reference to another file.

It exits with 1 if there is any. docs/contract.md describes the extension.`,
		Example: `  drainer verify manifest openapi.yaml
  drainer verify manifest openapi.json -o json | jq '.violations[] | {method, path, rule}'`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			document, err := manifest.Load(args[0])
			if err != nil {
				return err
			}
			return options.printVerdict(command, document)
		},
	}
}

// manifestVerdict is what `verify manifest -o json` prints.
type manifestVerdict struct {
	Valid      bool                 `json:"valid"`
	Operations int                  `json:"operations"`
	Writes     int                  `json:"writes"`
	Violations []manifest.Violation `json:"violations"`
}

func (o *options) printVerdict(command *cobra.Command, document *manifest.Document) error {
	violations := document.Violations()
	verdict := manifestVerdict{Valid: len(violations) == 0, Operations: len(document.Operations), Violations: violations}
	for _, operation := range document.Operations {
		if operation.Writes() {
			verdict.Writes++
		}
	}
	if verdict.Valid && o.output == table {
		_, err := fmt.Fprintf(command.OutOrStdout(), "%d operations, %d writes, no violation\n", verdict.Operations, verdict.Writes)
		return err
	}
	if err := o.print(command, verdict, []string{"LINE", "OPERATION", "PLACE", "PROBLEM", "CURE"}, violationRows(violations)); err != nil {
		return err
	}
	if !verdict.Valid {
		return fmt.Errorf("%d violations in %d operations", len(violations), verdict.Operations)
	}
	return nil
}

func violationRows(violations []manifest.Violation) [][]string {
	rows := make([][]string, len(violations))
	for i, v := range violations {
		rows[i] = []string{lineText(v.Line), v.Method + " " + v.Path, v.Place, v.Problem, v.Cure}
	}
	return rows
}

func lineText(line int) string {
	if line == 0 {
		return "-"
	}
	return fmt.Sprint(line)
}
