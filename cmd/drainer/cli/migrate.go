package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/migrations"
)

func newMigrate(options *options) *cobra.Command {
	command := group("migrate", "Bring the schema up to date, take it down, or show where it stands")
	command.AddCommand(
		newMigrateUp(options),
		newMigrateDown(options),
		newMigrateStatus(options),
	)
	return command
}

func newMigrateUp(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply what is missing",
		Long: `up creates the schema outbox, or brings it up to date. Several processes may run
it at once: one migrates, the others wait. It gives up on a lock that is held for
long, rather than making agents queue behind it; run it again then.`,
		Example: `  drainer migrate up --database-url postgres://localhost/app`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.migrate(command, migrations.Up)
		},
	}
}

func newMigrateDown(options *options) *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:     "down",
		Short:   "Remove the schema with every intent and its history",
		Example: `  drainer migrate down --yes --database-url postgres://localhost/app`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !yes {
				return usagef(command, "down deletes every intent and its history; say --yes if that is meant")
			}
			return options.migrate(command, migrations.Down)
		},
	}
	command.Flags().BoolVar(&yes, "yes", false, "really remove it")
	return command
}

func newMigrateStatus(options *options) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "List every migration, and whether the database has it",
		Example: `  drainer migrate status --config drainer.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.migrate(command, migrations.Status)
		},
	}
}

// migrate prints the migrations that an operation touched, also those before
// it failed.
func (o *options) migrate(command *cobra.Command, operation func(context.Context, string) ([]migrations.Migration, error)) error {
	url, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	conn, err := connect(command.Context(), url)
	if err != nil {
		return err
	}
	if err := conn.Close(command.Context()); err != nil {
		return fmt.Errorf("close the database connection: %w", err)
	}
	touched, failed := operation(command.Context(), url)
	if err := o.printMigrations(command, touched); err != nil {
		return err
	}
	return failed
}

// migrationLine is a Migration as it is printed.
type migrationLine struct {
	Set     string `json:"set"`
	Version int64  `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

func (o *options) printMigrations(command *cobra.Command, all []migrations.Migration) error {
	lines := make([]migrationLine, len(all))
	rows := make([][]string, len(all))
	for i, m := range all {
		lines[i] = migrationLine(m)
		rows[i] = []string{m.Set, strconv.FormatInt(m.Version, 10), m.Name, strconv.FormatBool(m.Applied)}
	}
	if len(all) == 0 && o.output == table {
		_, err := fmt.Fprintln(command.OutOrStdout(), "nothing to do")
		return err
	}
	return o.print(command, lines, []string{"SET", "VERSION", "NAME", "APPLIED"}, rows)
}
