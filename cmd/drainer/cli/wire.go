package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/compensations"
	"github.com/agentoutbox/drainer/compensations/pages"
	"github.com/agentoutbox/drainer/compensations/upkeep"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/census"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/migrations"
)

// loadConfig reads the configuration for commands that need its providers. Other commands, such as migrate, need
// only a database.
func (o *options) loadConfig(command *cobra.Command) (*config.Config, error) {
	return o.loadConfigBy(command, config.Load)
}

// loadPolicies is loadConfig for a command that sends nothing, and so needs no secret.
func (o *options) loadPolicies(command *cobra.Command) (*config.Config, error) {
	return o.loadConfigBy(command, o.withoutSecrets)
}

// givenPolicies is loadPolicies for a command that can work without a configuration. It returns nil if there is
// none.
func (o *options) givenPolicies(command *cobra.Command) (*config.Config, error) {
	if o.configPath == "" {
		return nil, nil
	}
	return o.loadPolicies(command)
}

// withoutSecrets reads the database's URL only if no flag replaces it.
func (o *options) withoutSecrets(path string, registry dispatch.Registry) (*config.Config, error) {
	return config.LoadWithoutSecrets(path, registry, o.databaseURL == "")
}

func (o *options) loadConfigBy(command *cobra.Command, load func(string, dispatch.Registry) (*config.Config, error)) (*config.Config, error) {
	if o.configPath == "" {
		return nil, usagef(command, "say which configuration to use: --config FILE, or DRAINER_CONFIG, or a drainer.yaml in this folder")
	}
	loaded, err := load(o.configPath, o.registry)
	if err != nil {
		return nil, err
	}
	if len(loaded.Providers) == 0 {
		return nil, &config.InvalidError{Files: loaded.Files, Problems: []*config.Error{{
			File:    o.configPath,
			Message: "there are no providers, so there is nothing to drain; add one under providers",
		}}}
	}
	return loaded, nil
}

// findDatabase returns the database of a command that needs nothing else of the configuration. It reads the file
// only if no flag names the database.
func (o *options) findDatabase(command *cobra.Command) (*pgpool.Database, error) {
	if o.databaseURL != "" || o.configPath == "" {
		return o.databaseOf(command, &config.Config{})
	}
	loaded, err := o.withoutSecrets(o.configPath, o.registry)
	if err != nil {
		return nil, err
	}
	return o.databaseOf(command, loaded)
}

// databaseOf returns the database of the flag, or else of the configuration, or else of the environment. It does not
// use the configuration's password with the URL of a flag, which may have another user.
func (o *options) databaseOf(command *cobra.Command, loaded *config.Config) (*pgpool.Database, error) {
	chosen := loaded.Database
	if o.databaseURL != "" {
		chosen = config.Database{URL: config.NewReference(o.databaseURL)}
	}
	if !chosen.URL.IsGiven() || chosen.URL == config.NewReference("${env:DATABASE_URL}") {
		chosen.URL = config.NewReference(os.Getenv("DATABASE_URL")) // this value may refer to a file
	}
	if !chosen.URL.IsGiven() {
		return nil, usagef(command, "say which database to use: --database-url URL, database.url in the configuration, or DATABASE_URL")
	}
	return pgpool.NewDatabase(func() (login pgpool.Login, err error) {
		if login.URL, err = chosen.URL.Read(); err == nil && chosen.Password.IsGiven() {
			login.Password, err = chosen.Password.Read()
		}
		return login, err
	}, chosen.PasswordCommand, chosen.PasswordTTL), nil
}

const connectTimeout = 5 * time.Second

// connect fails within connectTimeout. Its error is pgpool.ErrRefused if a server refused the login, and
// errDatabaseUnreachable if no server accepted the connection.
func connect(ctx context.Context, database *pgpool.Database) (*pgx.Conn, error) {
	settings, err := database.Config(ctx)
	if err != nil {
		return nil, err
	}
	settings.ConnConfig.ConnectTimeout = connectTimeout
	conn, err := pgpool.Connect(ctx, settings.ConnConfig)
	switch {
	case pgpool.Refused(err):
		return nil, fmt.Errorf("%w: %w", pgpool.ErrRefused, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errDatabaseUnreachable, err)
	}
	return conn, nil
}

// connectCurrent also returns an error if the schema is older than this drainer needs.
func connectCurrent(ctx context.Context, database *pgpool.Database) (*pgx.Conn, error) {
	conn, err := connect(ctx, database)
	if err != nil {
		return nil, err
	}
	if err := migrations.Check(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

func checkDatabase(ctx context.Context, database *pgpool.Database) error {
	conn, err := connectCurrent(ctx, database)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// withConsole runs a command's work on a new connection.
func (o *options) withConsole(command *cobra.Command, work func(*operator.Console) error) error {
	database, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	conn, err := connectCurrent(command.Context(), database)
	if err != nil {
		return missingRole(err, database, operatorRole)
	}
	console := operator.Open(conn)
	defer console.Close(context.WithoutCancel(command.Context()))
	return missingRole(work(console), database, operatorRole)
}

// onOutbox returns the run function of a command that needs only a connection.
func (o *options) onOutbox(work func(*cobra.Command, *operator.Console, []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		return o.withConsole(command, func(console *operator.Console) error { return work(command, console, args) })
	}
}

// signed makes a command change something, with the operator and the reason of its flags.
func (o *options) signed(command *cobra.Command, change func(*cobra.Command, *operator.Console, []string, operator.Signature) error) *cobra.Command {
	var by operator.Signature
	signatureFlags(command, &by)
	command.RunE = func(command *cobra.Command, args []string) error {
		if err := sign(command, &by); err != nil {
			return err
		}
		return o.withConsole(command, func(console *operator.Console) error { return change(command, console, args, by) })
	}
	return command
}

// The roles that commands need. The migrations create all of them but the owner's.
const (
	operatorRole = "outbox_operator"
	drainerRole  = "outbox_drainer"
	ownerRole    = "" // the login that ran the migrations, under any name
)

// missingRole adds the role that the login lacks to an error of Postgres for a missing privilege.
func missingRole(err error, database *pgpool.Database, role string) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "42501" {
		return err
	}
	login := "of the database URL"
	if user := database.User(); user != "" {
		login = pgx.Identifier{user}.Sanitize()
	}
	if role == ownerRole {
		return fmt.Errorf("the login %s may not do this (%s); use the login that owns the schema outbox, or one that may create it", login, refused.Message)
	}
	return fmt.Errorf("the login %s may not do this (%s); it lacks the role %s: GRANT %[3]s TO %[1]s", login, refused.Message, role)
}

// parts run beside the dispatching: River's jobs and the counting.
type parts struct {
	saga   *compensations.Saga
	pager  *pages.Pager
	upkeep *upkeep.Upkeep
	census *census.Census
}

// pools are the connections of the parts. Dispatching uses others.
type pools struct{ sagas, jobs, census *pgxpool.Pool }

func partsOf(pools pools, loaded *config.Config, log *slog.Logger, metrics prometheus.Registerer) (*parts, error) {
	saga, err := compensations.New(pools.sagas, policiesOf(loaded), log, metrics)
	if err != nil {
		return nil, err
	}
	channels, err := channelsOf(loaded)
	if err != nil {
		return nil, err
	}
	pager := pages.New(pools.jobs, pages.Defaults(channels, providerNames(loaded)), log, metrics)
	maintenance, err := upkeep.New(pools.jobs, retentionOf(loaded), log, metrics)
	if err != nil {
		return nil, err
	}
	return &parts{saga, pager, maintenance, census.New(pools.census, loaded.Providers, log, metrics)}, nil
}

// prepare prepares every part for another configuration, or returns an error and changes none. use puts the
// configuration into effect.
func (p *parts) prepare(loaded *config.Config) (use func(), err error) {
	usePolicies, err := p.saga.Prepare(policiesOf(loaded))
	if err != nil {
		return nil, err
	}
	channels, err := channelsOf(loaded)
	if err != nil {
		return nil, err
	}
	useRetention, err := p.upkeep.Prepare(retentionOf(loaded))
	if err != nil {
		return nil, err
	}
	return func() {
		usePolicies()
		p.pager.Use(channels, providerNames(loaded))
		useRetention()
		p.census.Use(loaded.Providers)
	}, nil
}

func retentionOf(loaded *config.Config) upkeep.Retention {
	return upkeep.Retention{Tools: loaded.Retentions(), MaxRun: loaded.Retention.MaxRun}
}

func policiesOf(loaded *config.Config) compensations.Policies {
	policies := compensations.Policies{}
	for _, provider := range loaded.Providers {
		policies[provider.Name] = provider.Tools
	}
	return policies
}

// channelsOf builds the channels that the configuration has under pages.
func channelsOf(loaded *config.Config) ([]pages.Channel, error) {
	var channels []pages.Channel
	for _, page := range loaded.Pages {
		sender, err := senderOf(page)
		if err != nil {
			return nil, fmt.Errorf("pages: %s: %w", page.Name, err)
		}
		repeat := loaded.PageRepeat
		if page.Kind == config.Alertmanager { // there an alert that is not repeated ends by itself
			repeat = pages.AlertmanagerRepeat
		}
		channels = append(channels, pages.Channel{Name: page.Name, Match: page.Match, Repeat: repeat, Console: loaded.PageConsole, Sender: sender})
	}
	return channels, nil
}

func senderOf(page config.Page) (pages.Sender, error) {
	switch page.Kind {
	case config.PagerDuty:
		return pages.NewPagerDuty(page.URL, page.Secret), nil
	case config.Slack:
		return pages.NewSlack(page.URL), nil
	case config.Alertmanager:
		return pages.NewAlertmanager(page.URL), nil
	case config.Webhook:
		return pages.NewWebhook(page.URL, page.Secret)
	}
	return nil, fmt.Errorf("there is no such channel as %s", page.Kind)
}

func providerNames(loaded *config.Config) []string {
	names := make([]string, len(loaded.Providers))
	for i, provider := range loaded.Providers {
		names[i] = provider.Name
	}
	return names
}
