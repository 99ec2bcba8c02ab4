package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const consoleAddress = "127.0.0.1:9465"

// consoleSetup has the flags of `drainer console`.
type consoleSetup struct {
	listen, tokens string
	viewers        string
	proxies        []string
	userHeader     string
	groupHeader    string
	operators      string
	readers        string
	oidc           console.OIDC
	oidcSecret     string
	redact         []string
}

func newConsole(options *options) *cobra.Command {
	var setup consoleSetup
	command := &cobra.Command{
		Use:   "console",
		Short: "Serve a web page of what is wrong now, to look and to decide",
		Long: `console serves a web page on this machine. It shows open incidents, providers that
need a look, runs with their rollbacks, and every attempt. Payloads and responses are
shown to an operator who gives a reason, which is recorded in outbox.operation; what
--redact names is not shown at all.

Without --tokens, --oidc-issuer or --trust-proxy it listens on a loopback address alone, and
every user of the machine may read, and none may change anything. An operator
retries, sends now, cancels, acknowledges, pauses, resumes and rolls back, each in
two steps; the history names the operator.

--tokens names a file of lines such as "alice operator TOKEN", with the role viewer
or operator. --trust-proxy believes the header of a proxy that authenticates people.
--oidc-issuer has people log in at an OpenID Connect issuer.

--viewer-database names a login with the role outbox_auditor, which can only SELECT. Every
page is read with it; the console's own login serves an operator's changes and reveals
alone. Without it, the own login reads too.`,
		Example: `  drainer console --config drainer.yaml
  drainer console --tokens /etc/drainer/console-tokens --listen 127.0.0.1:9465
  drainer console --listen :9465 --trust-proxy 10.0.0.0/8 --operators on-call
  drainer console --listen :9465 --operators on-call --url https://console.example.com \
    --oidc-issuer https://login.example.com --oidc-client drainer --oidc-secret-file /etc/drainer/oidc-secret`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return options.console(command, setup) },
	}
	flags := command.Flags()
	flags.StringVar(&setup.listen, "listen", consoleAddress, "`host:port` to serve on")
	flags.StringVar(&setup.viewers, "viewer-database", "", "`URL` of a login that can only read, for every page but the steps of a change; may be ${env:NAME} or ${file:PATH}")
	flags.StringVar(&setup.tokens, "tokens", "", "`file` of people and their tokens")
	flags.StringSliceVar(&setup.proxies, "trust-proxy", nil, "`CIDR` of the proxy's addresses")
	flags.StringVar(&setup.userHeader, "user-header", "X-Forwarded-User", "`header` in which the proxy names the person")
	flags.StringVar(&setup.groupHeader, "group-header", "X-Forwarded-Groups", "`header` in which it names groups, between commas")
	flags.StringVar(&setup.operators, "operators", "", "`group` whose members may change things")
	flags.StringVar(&setup.readers, "viewers", "", "`group` whose members may read; without it every person who is authenticated may")
	flags.StringVar(&setup.oidc.Issuer, "oidc-issuer", "", "`URL` of the issuer at which people log in")
	flags.StringVar(&setup.oidc.ClientID, "oidc-client", "", "`id` of the console at the issuer")
	flags.StringVar(&setup.oidcSecret, "oidc-secret-file", "", "`file` of the client's secret; without it the client is public")
	flags.StringVar(&setup.oidc.Groups, "oidc-groups", "groups", "`claim` that lists a person's groups")
	flags.StringVar(&setup.oidc.URL, "url", "", "the console's `URL` in browsers; people come back from the issuer to its path /oidc/callback")
	flags.StringArrayVar(&setup.redact, "redact", nil, "`path` that is never shown, such as .card.number, .items[].secret or .*.token")
	command.MarkFlagsMutuallyExclusive("tokens", "trust-proxy", "oidc-issuer")
	command.MarkFlagsRequiredTogether("oidc-issuer", "oidc-client", "url")
	return command
}

func (o *options) console(command *cobra.Command, setup consoleSetup) error {
	ctx := command.Context()
	log := slog.New(slog.NewJSONHandler(command.ErrOrStderr(), nil))
	access, err := setup.access(command, log)
	if err != nil {
		return err
	}
	var redactions []console.Redaction
	for _, path := range setup.redact {
		redaction, err := console.ParseRedaction(path)
		if err != nil {
			return usagef(command, "--redact: %w", err)
		}
		redactions = append(redactions, redaction)
	}
	database, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	if err := checkDatabase(ctx, database); err != nil {
		return err
	}
	reading, err := setup.viewerDatabase(ctx, command, database)
	if err != nil {
		return err
	}
	var policyOf func(provider, operation string) (dispatch.Policy, bool)
	var tools []console.Tool
	if o.configPath != "" {
		if policyOf, err = o.policies(command); err != nil {
			return err
		}
		if tools, err = o.consoleTools(command); err != nil {
			return err
		}
	}
	examine := func(ctx context.Context) []doctor.Finding {
		var patient doctor.Patient
		patient.Database, patient.NoLogin = reading.Config(ctx)
		findings, _ := doctor.Examine(ctx, patient) // a database that is away is a finding
		return findings
	}
	pool, err := pgpool.Open(ctx, database, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	log = database.Logging(log)
	viewing := pool
	if reading != database {
		log = reading.Logging(log)
		if viewing, err = pgpool.Open(ctx, reading, 4); err != nil {
			return err
		}
		defer viewing.Close()
	}
	pages, err := console.New(console.Options{Pool: pool, Viewing: viewing, Access: access, PolicyOf: policyOf, Redactions: redactions, Tools: tools, Doctor: examine, Log: log})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", setup.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(command.ErrOrStderr(), "The console is at http://%s/\n", listener.Addr())
	return servePages(ctx, listener, pages, log)
}

func (o *options) consoleTools(command *cobra.Command) (tools []console.Tool, err error) {
	loaded, err := o.loadPolicies(command)
	if err != nil {
		return nil, err
	}
	for _, tool := range summarize(loaded) {
		tools = append(tools, console.Tool{
			Name: tool.Tool, Class: tool.Class, KeyTTL: tool.KeyTTL, MaxAttempts: tool.MaxAttempts, Timeout: tool.Timeout, Undo: tool.Undo, Missing: tool.Missing,
		})
	}
	return tools, nil
}

// viewerDatabase refuses a login that could change something: no page needs it.
func (c consoleSetup) viewerDatabase(ctx context.Context, command *cobra.Command, otherwise *pgpool.Database) (*pgpool.Database, error) {
	if c.viewers == "" {
		return otherwise, nil
	}
	url := config.NewReference(c.viewers)
	database := pgpool.NewDatabase(func() (login pgpool.Login, err error) {
		login.URL, err = url.Read()
		return login, err
	}, nil, 0)
	conn, err := connectCurrent(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("--viewer-database: %w", err)
	}
	defer conn.Close(ctx)
	writes, err := doctor.Writes(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("--viewer-database: %w", err)
	}
	if len(writes) > 0 {
		return nil, usagef(command, "--viewer-database: this login can change the outbox (%s and so on); give it the role outbox_auditor alone", writes[0])
	}
	return database, nil
}

// access refuses to serve others than this machine's users without knowing who they are.
func (c consoleSetup) access(command *cobra.Command, log *slog.Logger) (console.Access, error) {
	switch {
	case c.tokens != "":
		text, err := os.ReadFile(c.tokens)
		if err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
		access, err := console.Tokens(text, log)
		if err != nil {
			return nil, usagef(command, "--tokens: %s: %w", c.tokens, err)
		}
		return access, nil
	case c.oidc.Issuer != "":
		issuer := c.oidc
		issuer.Operators, issuer.Viewers = c.operators, c.readers
		if c.oidcSecret != "" {
			text, err := os.ReadFile(c.oidcSecret)
			if err != nil {
				return nil, fmt.Errorf("--oidc-secret-file: %w", err)
			}
			issuer.Secret = strings.TrimSpace(string(text))
		}
		access, err := issuer.Access(log)
		if err != nil {
			return nil, usagef(command, "--oidc-issuer: %w", err)
		}
		return access, nil
	case len(c.proxies) > 0:
		proxy := console.Proxy{UserHeader: c.userHeader, GroupHeader: c.groupHeader, Operators: c.operators, Viewers: c.readers}
		for _, text := range c.proxies {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, usagef(command, "--trust-proxy: %q is no range of addresses such as 10.0.0.0/8", text)
			}
			proxy.Trusted = append(proxy.Trusted, prefix)
		}
		return proxy, nil
	}
	return nil, onlyHere(command, c.listen, "say who may read with --tokens, --oidc-issuer or --trust-proxy")
}

// onlyHere refuses to listen where other machines can connect; otherwise says what allows it.
func onlyHere(command *cobra.Command, listen, otherwise string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return usagef(command, "--listen: %w", err)
	}
	if address, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !address.IsLoopback()) {
		return usagef(command, "--listen %s is open to other machines; %s", listen, otherwise)
	}
	return nil
}

func servePages(ctx context.Context, listener net.Listener, pages http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() {
		ends, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ends) // a page that takes longer is read again
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	return nil
}
