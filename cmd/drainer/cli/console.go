package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

const consoleAddress = "127.0.0.1:9465"

// consoleSetup holds the settings of a console: the flags of `drainer console`, or the block console of a daemon's
// configuration.
type consoleSetup struct {
	config.Console

	viewers string // the URL of a login that can only read
	isBlock bool
}

// named returns the name that the user wrote: --oidc-client, or console.oidc.client.
func (c consoleSetup) named(flag string) string {
	if !c.isBlock {
		return "--" + flag
	}
	return "console." + strings.ReplaceAll(strings.NewReplacer("oidc-", "oidc.", "tls-", "tls.").Replace(flag), "-", "_")
}

func newConsole(options *options) *cobra.Command {
	setup := consoleSetup{Console: config.DefaultConsole()}
	command := &cobra.Command{
		Use:   "console",
		Short: "Serve a web page of what is wrong now, to look and to decide",
		Long: `console serves a web page on this machine. It shows open incidents, providers that
need a look, runs with their rollbacks, and every attempt. Payloads and responses are
shown to an operator who gives a reason, which is recorded in outbox.operation; what
--redact names is not shown at all.

Without --tokens, --oidc-issuer or a proxy it listens on a loopback address alone, and
every user of the machine may read, and none may change anything. An operator
retries, sends now, cancels, acknowledges, pauses, resumes and rolls back, each in
two steps; the history names the operator.

--tokens names a file of lines such as "alice operator TOKEN", with the role viewer
or operator. --trust-proxy believes the header of a proxy that authenticates people, at its
addresses; --proxy-ca-file and --proxy-name believe it by its client certificate.
--oidc-issuer has people log in at an OpenID Connect issuer.

With --tls-certificate-file and --tls-key-file it serves HTTPS, and takes renewed files
without a restart.

--viewer-database names a login with the role outbox_auditor, which can only SELECT. Every
page is read with it; the console's own login serves an operator's changes and reveals
alone. Without it, the own login reads too.`,
		Example: `  drainer console --config drainer.yaml
  drainer console --tokens /etc/drainer/console-tokens --listen 127.0.0.1:9465
  drainer console --listen :9465 --trust-proxy 10.0.0.0/8 --operators on-call
  drainer console --listen :9465 --operators on-call --tls-certificate-file tls.crt --tls-key-file tls.key \
    --proxy-ca-file ca.crt --proxy-name spiffe://cluster.local/ns/ingress/sa/proxy
  drainer console --listen :9465 --operators on-call --url https://console.example.com \
    --oidc-issuer https://login.example.com --oidc-client drainer --oidc-secret-file /etc/drainer/oidc-secret`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return options.console(command, setup) },
	}
	flags := command.Flags()
	flags.StringVar(&setup.Listen, "listen", consoleAddress, "`host:port` to serve on")
	flags.StringVar(&setup.viewers, "viewer-database", "", "`URL` of a login that can only read, for every page but the steps of a change; may be ${env:NAME} or ${file:PATH}")
	flags.StringVar(&setup.Tokens, "tokens", "", "`file` of people and their tokens")
	flags.StringVar(&setup.TLS.CertificateFile, "tls-certificate-file", "", "`file` of the certificate with its chain, in PEM, to serve HTTPS; a renewed one is taken without a restart")
	flags.StringVar(&setup.TLS.KeyFile, "tls-key-file", "", "`file` of its private key")
	flags.StringSliceVar(&setup.TrustProxy, "trust-proxy", nil, "`CIDR` of the proxy's addresses")
	flags.StringVar(&setup.ProxyCAFile, "proxy-ca-file", "", "`file` of the authority that signed the proxy's client certificate; a connection without such a certificate is refused")
	flags.StringArrayVar(&setup.ProxyNames, "proxy-name", nil, "DNS `name` or URI in the proxy's certificate; may be given several times")
	flags.StringVar(&setup.UserHeader, "user-header", setup.UserHeader, "`header` in which the proxy names the person")
	flags.StringVar(&setup.GroupHeader, "group-header", setup.GroupHeader, "`header` in which it names groups, between commas")
	flags.StringVar(&setup.Operators, "operators", "", "`group` whose members may change things")
	flags.StringVar(&setup.Viewers, "viewers", "", "`group` whose members may read; without it every person who is authenticated may")
	flags.StringVar(&setup.OIDC.Issuer, "oidc-issuer", "", "`URL` of the issuer at which people log in")
	flags.StringVar(&setup.OIDC.Client, "oidc-client", "", "`id` of the console at the issuer")
	flags.StringVar(&setup.OIDC.SecretFile, "oidc-secret-file", "", "`file` of the client's secret; without it the client is public")
	flags.StringVar(&setup.OIDC.Groups, "oidc-groups", setup.OIDC.Groups, "`claim` that lists a person's groups")
	flags.StringVar(&setup.OIDC.URL, "url", "", "the console's `URL` in browsers; people come back from the issuer to its path /oidc/callback")
	flags.StringArrayVar(&setup.Redact, "redact", nil, "`path` that is never shown, such as .card.number, .items[].secret or .*.token")
	flags.StringVar(&setup.TraceURL, "trace-url", "", "`URL` of a trace in the tracing system's pages, with {trace_id} in it; viewers see it, so it may hold no login")
	command.MarkFlagsMutuallyExclusive("tokens", "trust-proxy", "oidc-issuer")
	command.MarkFlagsMutuallyExclusive("tokens", "proxy-ca-file", "oidc-issuer")
	command.MarkFlagsRequiredTogether("oidc-issuer", "oidc-client", "url")
	return command
}

func (o *options) console(command *cobra.Command, setup consoleSetup) error {
	ctx := command.Context()
	log := slog.New(slog.NewJSONHandler(command.ErrOrStderr(), nil))
	options, err := setup.options(log)
	if err != nil {
		return usagef(command, "%w", err)
	}
	encrypts, err := setup.encryption()
	if err != nil {
		return usagef(command, "%w", err)
	}
	if options.Access == nil {
		if err := onlyHere(command, setup.Listen, "say who may read with --tokens, --oidc-issuer, --trust-proxy or --proxy-ca-file"); err != nil {
			return err
		}
	}
	database, err := o.findDatabase(command)
	if err != nil {
		return err
	}
	if err := checkDatabase(ctx, database); err != nil {
		return err
	}
	reading, err := setup.viewerDatabase(ctx, database)
	if err != nil {
		return err
	}
	loaded, err := o.givenPolicies(command)
	if err != nil {
		return err
	}
	pages, closePools, err := consolePages(ctx, options, database, reading, func() *standing { return &standing{Config: loaded, file: loaded} })
	if err != nil {
		return err
	}
	defer closePools()
	listener, err := net.Listen("tcp", setup.Listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	scheme := "http"
	if encrypts != nil {
		listener, scheme = encrypts.listen(ctx, listener, log), "https"
	}
	fmt.Fprintf(command.ErrOrStderr(), "The console is at %s://%s/\n", scheme, listener.Addr())
	return servePages(ctx, listener, pages, maxConnections, log)
}

// consoleOf returns the console of a daemon, and its listener, which already listens. The console has its own
// connections, so a page never waits for a dispatch, nor a dispatch for a page.
func consoleOf(ctx context.Context, loaded *config.Config, database *pgpool.Database, inForce func() *standing, log *slog.Logger) (listener net.Listener, pages http.Handler, closePools func(), err error) {
	setup := consoleSetup{Console: loaded.Console, isBlock: true}
	if file := setup.DatabaseFile; file != "" {
		database = pgpool.NewDatabase(func() (login pgpool.Login, err error) {
			login.URL, err = config.NewReference("${file:" + file + "}").Read()
			return login, err
		}, nil, 0)
		if err := checkDatabase(ctx, database); err != nil {
			return nil, nil, nil, fmt.Errorf("console.database_file: %w", err)
		}
	}
	if file := setup.ViewerFile; file != "" {
		setup.viewers = "${file:" + file + "}"
	}
	reading, err := setup.viewerDatabase(ctx, database)
	if err != nil {
		return nil, nil, nil, err
	}
	options, err := setup.options(log)
	if err != nil {
		return nil, nil, nil, err
	}
	encrypts, err := setup.encryption()
	if err != nil {
		return nil, nil, nil, err
	}
	if pages, closePools, err = consolePages(ctx, options, database, reading, inForce); err != nil {
		return nil, nil, nil, err
	}
	if listener, err = net.Listen("tcp", setup.Listen); err != nil {
		closePools()
		return nil, nil, nil, fmt.Errorf("console.listen: %w", err)
	}
	if encrypts != nil {
		listener = encrypts.listen(ctx, listener, log)
	}
	log.Info("serving the console", "address", listener.Addr().String())
	return listener, pages, closePools, nil
}

// options reads the files that the setup names.
func (c consoleSetup) options(log *slog.Logger) (options console.Options, err error) {
	options.Log = log
	if options.Access, err = c.access(log); err != nil {
		return options, err
	}
	options.TraceURL = c.TraceURL
	if err := config.CheckTraceURL(c.TraceURL); err != nil {
		return options, fmt.Errorf("%s: %w", c.named("trace-url"), err)
	}
	for _, path := range c.Redact {
		redaction, err := console.ParseRedaction(path)
		if err != nil {
			return options, fmt.Errorf("%s: %w", c.named("redact"), err)
		}
		options.Redactions = append(options.Redactions, redaction)
	}
	return options, nil
}

// consolePages opens a pool for each login. inForce returns the current configuration, which is empty if there is
// none.
func consolePages(ctx context.Context, options console.Options, database, reading *pgpool.Database, inForce func() *standing) (pages http.Handler, closePools func(), err error) {
	if inForce().Config != nil {
		options.PolicyOf = func(provider, operation string) (dispatch.Policy, bool) {
			return inForce().Policy(provider, operation)
		}
	}
	options.Preview = func(ctx context.Context, request dispatch.Request) (string, error) {
		return preview(ctx, inForce().Config, request)
	}
	options.Tools = func() []console.Tool { return summarize(inForce().Config) }
	options.Settings = func() []console.Setting { return settingsOf(inForce()) }
	options.Doctor = func(ctx context.Context) []doctor.Finding {
		patient := doctor.Patient{Bystander: true}
		patient.Database, patient.NoLogin = reading.Config(ctx)
		findings, _ := doctor.Examine(ctx, patient) // an unreachable database is one of the findings
		return findings
	}
	options.Log = database.Logging(options.Log)
	if options.Pool, err = pgpool.Open(ctx, database, 4); err != nil {
		return nil, nil, err
	}
	closePools = options.Pool.Close
	if reading != database {
		options.Log = reading.Logging(options.Log)
		if options.Viewing, err = pgpool.Open(ctx, reading, 4); err != nil {
			closePools()
			return nil, nil, err
		}
		closePools = func() { options.Viewing.Close(); options.Pool.Close() }
	}
	if pages, err = console.New(options); err != nil {
		closePools()
		return nil, nil, err
	}
	return pages, closePools, nil
}

// settingsOf lists settings that hold no credential. It lists no setting of an adapter's own block or of the block
// that authenticates people, but it shows that such a block waits for a restart.
func settingsOf(at *standing) (all []console.Setting) {
	now, file := at.Config, at.file
	if now == nil {
		return nil
	}
	secrets := drainer.NewRedactor(now.Secrets)
	fixed := func(name string, value, next any) {
		setting := console.Setting{Name: name, Value: secrets.Text(fmt.Sprint(value))}
		if value != next {
			setting.AfterRestart = cmp.Or(secrets.Text(fmt.Sprint(next)), "the default")
		}
		if setting.Value != "" || setting.AfterRestart != "" {
			all = append(all, setting)
		}
	}
	add := func(name string, value any) { fixed(name, value, value) }
	for _, block := range at.waiting {
		all = append(all, console.Setting{Name: block, Value: "as at the start", AfterRestart: "as in the file"})
	}
	fixed("worker.heartbeat", now.Worker.Heartbeat, file.Worker.Heartbeat)
	fixed("worker.lease", now.Worker.Lease, file.Worker.Lease)
	fixed("worker.shutdown_timeout", now.Worker.ShutdownTimeout, file.Worker.ShutdownTimeout)
	fixed("server.listen", now.Server.Listen, file.Server.Listen)
	fixed("console.listen", now.Console.Listen, file.Console.Listen)
	fixed("log.level", now.Log.Level, file.Log.Level)
	add("retention.default", now.Retention.Default)
	add("retention.max_run", now.Retention.MaxRun)
	fixed("unconfigured.fail_after", now.Unconfigured.FailAfter, file.Unconfigured.FailAfter)
	fixed("misconfigured.fail_after", now.Misconfigured.FailAfter, file.Misconfigured.FailAfter)
	add("page_repeat", now.PageRepeat)
	for _, page := range now.Pages {
		add("pages."+page.Name, page.Kind)
	}
	for _, provider := range now.Providers {
		of := "providers." + provider.Name + "."
		add(of+"concurrency", provider.Concurrency)
		add(of+"timeout", provider.Timeout)
		if limit := provider.RateLimit; limit.PerSecond > 0 {
			add(of+"rate_limit", fmt.Sprintf("%g a second, burst %d", limit.PerSecond, limit.Burst))
		}
		add(of+"fallback", provider.Fallback)
		add(of+"idempotency.namespace", provider.Namespace)
	}
	return all
}

// preview removes the configuration's secrets from the request and from an error: a body may contain one, and so may
// an expression that the error names.
func preview(ctx context.Context, loaded *config.Config, request dispatch.Request) (string, error) {
	if loaded == nil {
		return "", errors.New("the console was given no configuration: start it with --config")
	}
	provider, known := loaded.Provider(request.Tuple.Provider())
	if !known {
		return "", errors.New("the console's configuration has no such provider")
	}
	if provider.Adapter == nil {
		return "", errors.New("`drainer console` reads no credentials, and without them this provider's requests cannot be made; the console of a daemon shows them")
	}
	previewer, shows := provider.Adapter.(dispatch.Previewer)
	if !shows {
		return "", nil
	}
	secrets := drainer.NewRedactor(loaded.Secrets)
	text, err := previewer.Preview(ctx, request)
	if err != nil {
		return "", errors.New(secrets.Text(err.Error()))
	}
	return secrets.Text(text), nil
}

// viewerDatabase returns the database of the login that reads pages. It refuses a login that could change something,
// since no page needs that.
func (c consoleSetup) viewerDatabase(ctx context.Context, otherwise *pgpool.Database) (*pgpool.Database, error) {
	if c.viewers == "" {
		return otherwise, nil
	}
	url := config.NewReference(c.viewers)
	database := pgpool.NewDatabase(func() (login pgpool.Login, err error) {
		login.URL, err = url.Read()
		return login, err
	}, nil, 0)
	name, program := c.named("viewer-database"), "drainer console"
	if c.isBlock {
		name, program = name+"_file", "drainer run"
	}
	conn, err := connectCurrent(ctx, database)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer conn.Close(ctx)
	writes, err := doctor.Writes(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(writes) > 0 {
		return nil, usageError{fmt.Errorf("%s: this login can change the outbox (%s and so on); give it the role outbox_auditor alone", name, writes[0]), program}
	}
	return database, nil
}

// access decides who a reader is. It is nil if every user of this machine may read.
func (c consoleSetup) access(log *slog.Logger) (console.Access, error) {
	switch {
	case c.Tokens != "":
		text, err := config.ReadFile(c.Tokens)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.named("tokens"), err)
		}
		access, err := console.Tokens(text, log)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", c.named("tokens"), c.Tokens, err)
		}
		return access, nil
	case c.OIDC.Issuer != "":
		issuer := console.OIDC{Issuer: c.OIDC.Issuer, ClientID: c.OIDC.Client, Groups: c.OIDC.Groups, URL: c.OIDC.URL, Operators: c.Operators, Viewers: c.Viewers}
		if c.OIDC.SecretFile != "" {
			text, err := config.ReadFile(c.OIDC.SecretFile)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.named("oidc-secret-file"), err)
			}
			issuer.Secret = strings.TrimSpace(string(text))
		}
		access, err := issuer.Access(log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.named("oidc-issuer"), err)
		}
		return access, nil
	case c.HasProxy():
		proxy := console.Proxy{Names: c.ProxyNames, UserHeader: c.UserHeader, GroupHeader: c.GroupHeader, Operators: c.Operators, Viewers: c.Viewers}
		for _, text := range c.TrustProxy {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is no range of addresses such as 10.0.0.0/8", c.named("trust-proxy"), text)
			}
			proxy.Trusted = append(proxy.Trusted, prefix)
		}
		return proxy, nil
	}
	return nil, nil
}

// onlyHere refuses an address to which other machines can connect. otherwise is the advice in its error.
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

func servePages(ctx context.Context, listener net.Listener, pages http.Handler, most int, log *slog.Logger) error {
	return serve(ctx, listener, &http.Server{
		Handler: pages, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: stdlog.New(complaints{log, rate.NewLimiter(1, 10)}, "", 0),
	}, most, 5*time.Second)
}
