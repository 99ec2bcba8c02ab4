package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/internal/duration"
	"github.com/agentoutbox/drainer/migrations"
)

func newMigrate(options *options) *cobra.Command {
	command := group("migrate", "Bring the schema up to date, take it down, or show where it stands")
	command.AddCommand(
		newMigrateUp(options),
		newMigrateDown(options),
		newMigrateStatus(options),
		newMigrateRetention(options),
		newMigrateReferences(options),
	)
	return command
}

func newMigrateUp(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Create the schema, or apply missing migrations",
		Long: `up creates the schema outbox, or brings it up to date. Several processes may run
it at once: one migrates, the others wait. If it cannot get a lock for long, it gives
up, so that agents do not wait behind it. Run it again then.`,
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
		Short:   "List every migration, and whether the database has it, and the index of references if it is there",
		Example: `  drainer migrate status --config drainer.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return options.migrate(command, migrations.Status)
		},
	}
}

func newMigrateRetention(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "retention",
		Short: "Publish the configuration's retention as the floor for all daemons",
		Long: `retention writes the configuration's retention into the table outbox.setting: its
default, and that of tools with their own. No daemon prunes an intent earlier. Without
a setting this floor is 90 days, so a shorter retention counts only after this command.
It needs the login of the schema's owner, and prints its changes.`,
		Example: `  drainer migrate retention --config drainer.yaml --database-url "$OWNER_URL"`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := options.loadPolicies(command)
			if err != nil {
				return err
			}
			return options.publishRetention(command, loaded)
		},
	}
}

func newMigrateReferences(options *options) *cobra.Command {
	return &cobra.Command{
		Use:   "references on|off",
		Short: "Create or drop an index that finds any intent by its provider's reference",
		Long: `references on creates an index of references in outbox.attempt. With it, a search by a
provider's reference finds intents however old they are; without it, among the newest
100000. The index costs about 180 bytes of WAL and 80 bytes of disk for each attempt
with a reference of 27 characters. references off drops it.

Neither blocks agents or daemons, but both wait until older transactions have ended.
What a build that failed left behind is dropped. It needs the login of the schema's owner.`,
		Example: `  drainer migrate references on --database-url "$OWNER_URL"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if args[0] != "on" && args[0] != "off" {
				return usagef(command, "say on or off")
			}
			return options.migrate(command, func(ctx context.Context, url string, logins ...migrations.BeforeConnect) ([]migrations.Migration, error) {
				return migrations.References(ctx, args[0] == "on", url, logins...)
			})
		},
	}
}

// publishRetentionSQL deletes the earlier settings of the tools $3 that have no retention of their own any more.
const publishRetentionSQL = `
	WITH asked AS (SELECT * FROM unnest($1::text[], $2::text[]) AS a (name, value)),
	gone AS (DELETE FROM outbox.setting WHERE name = ANY ($3::text[]) AND name NOT IN (SELECT name FROM asked) RETURNING name),
	written AS (
		INSERT INTO outbox.setting AS s (name, value) SELECT name, value FROM asked
		ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value
		RETURNING name, value)
	SELECT name, value FROM written UNION ALL SELECT name, '' FROM gone ORDER BY 1`

// setting is one row of outbox.setting. An empty value means that it was removed.
type setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (o *options) publishRetention(command *cobra.Command, loaded *config.Config) error {
	database, err := o.databaseOf(command, loaded)
	if err != nil {
		return err
	}
	conn, err := connectCurrent(command.Context(), database)
	if err != nil {
		return missingRole(err, database, ownerRole)
	}
	defer conn.Close(context.WithoutCancel(command.Context()))
	const floor = "retention_floor"
	names, values, known := []string{floor}, []string{interval(loaded.Retention.Default)}, []string{}
	for tool := range loaded.Tools() {
		all := []string{floor + "/" + tool}
		if name := (dispatch.Tuple{ToolName: tool}); name.Provider() == name.Operation() { // agents may also write this name without the slash
			all = append(all, floor+"/"+name.Provider())
		}
		known = append(known, all...)
		if kept, ownWay := loaded.Retention.Tools[tool]; ownWay {
			for _, name := range all {
				names, values = append(names, name), append(values, interval(kept))
			}
		}
	}
	rows, _ := conn.Query(command.Context(), publishRetentionSQL, names, values, known) // CollectRows returns the error of Query as well
	changed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[setting])
	if err != nil {
		return missingRole(fmt.Errorf("write outbox.setting: %w", err), database, ownerRole)
	}
	return o.printDone(command, changed, tableOf([]string{"SETTING", "VALUE"}, changed, func(s setting) []any {
		return []any{s.Name, cmp.Or(s.Value, "removed")}
	}))
}

// interval returns a duration in the form of a Postgres interval.
func interval(length time.Duration) string {
	if days := length / duration.Day; length%duration.Day == 0 {
		return fmt.Sprintf("%d days", days)
	}
	return fmt.Sprintf("%g seconds", length.Seconds())
}

// migrate prints the migrations that an operation applied, removed or listed, even if it failed afterwards.
func (o *options) migrate(command *cobra.Command, operation func(context.Context, string, ...migrations.BeforeConnect) ([]migrations.Migration, error)) error {
	database, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	conn, err := connect(command.Context(), database)
	if err != nil {
		return err
	}
	if err := conn.Close(command.Context()); err != nil {
		return fmt.Errorf("close the database connection: %w", err)
	}
	url, err := database.URL()
	if err != nil {
		return err
	}
	touched, failed := operation(command.Context(), url, database.BeforeConnect)
	if err := o.printMigrations(command, touched); err != nil {
		return err
	}
	return missingRole(failed, database, ownerRole)
}

func (o *options) printMigrations(command *cobra.Command, all []migrations.Migration) error {
	if all == nil {
		all = []migrations.Migration{} // an empty list in JSON, and not null
	}
	return o.printDone(command, all, tableOf([]string{"SET", "VERSION", "NAME", "APPLIED"}, all, func(m migrations.Migration) []any {
		return []any{m.Set, m.Version, m.Name, m.Applied}
	}))
}

// printDone prints the changes, or says that there was nothing to do.
func (o *options) printDone(command *cobra.Command, value any, shown table) error {
	if len(shown.rows) == 0 && o.output == tableOutput {
		_, err := fmt.Fprintln(command.OutOrStdout(), "nothing to do")
		return err
	}
	return o.print(command, value, shown)
}
