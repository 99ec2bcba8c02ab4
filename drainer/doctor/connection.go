package doctor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

// connect opens the pool and makes its first connection.
func (x *examination) connect(ctx context.Context) ([]Finding, error) {
	config := x.Database.Copy()
	config.MaxConns = atOnce
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.ConnConfig.RuntimeParams["application_name"] = "drainer doctor"
	pgpool.Pin(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return []Finding{problem("correct the database URL", "no pool of connections can be made of the database URL")}, err
	}
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Check) // a pooler may accept a login without having a server for it
	defer cancel()
	at, err := firstConnection(ctx, pool)
	if err != nil {
		pool.Close()
		return []Finding{diagnose(err, config.ConnConfig)}, err
	}
	x.pool = pool
	return []Finding{ok("connected to %s as %s, database %s", at, config.ConnConfig.User, config.ConnConfig.Database)}, nil
}

// firstConnection connects, and returns where to: the host in the URL, or, if the URL has several hosts, the
// address of the connection.
func firstConnection(ctx context.Context, pool *pgxpool.Pool) (at string, err error) {
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer pooled.Release()
	if err := pooled.Ping(ctx); err != nil {
		return "", err
	}
	config := pooled.Conn().Config()
	isAnother := func(next *pgconn.FallbackConfig) bool { return next.Host != config.Host || next.Port != config.Port }
	if slices.ContainsFunc(config.Fallbacks, isAnother) {
		return pooled.Conn().PgConn().Conn().RemoteAddr().String(), nil
	}
	return target(config), nil
}

func target(config *pgx.ConnConfig) string {
	if strings.HasPrefix(config.Host, "/") {
		return config.Host
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// diagnose explains at which step connecting failed. It repeats the server's message, but
// not the driver's.
func diagnose(err error, config *pgx.ConnConfig) Finding {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		return refused(refusal, config)
	}
	at := target(config)
	if seen, cure, isTLS := explainTLS(err); isTLS {
		return problem(cure, "TLS: %s %s", at, seen)
	}
	if strings.Contains(err.Error(), "server refused TLS connection") { // the driver has no value for it
		return problem("turn ssl on at the server, or correct sslmode and the port in the database URL", "TLS: %s does not speak it, and sslmode demands it", at)
	}
	seen, cure := explainDial(err, at)
	return problem(cure, "%s", seen)
}

func refused(refusal *pgconn.PgError, config *pgx.ConnConfig) Finding {
	at := target(config)
	switch {
	case refusal.Code == "28P01":
		return problem("correct user and password where the database URL gets them, or run its password_command by hand; a daemon takes the new ones by itself",
			"authentication: %s refuses the password of %s", at, config.User)
	case strings.HasPrefix(refusal.Code, "28"):
		return problem("give the role LOGIN, and a line for this host, user and database in pg_hba.conf; hostssl lines want TLS",
			"authentication: %s does not let %s in (%s)", at, config.User, refusal.Code)
	case refusal.Code == "3D000":
		return problem("correct the database URL, or CREATE DATABASE", "%s has no database %s", at, config.Database)
	case refusal.Code == "53300":
		return problem("end connections that are not needed, raise max_connections, or put a pooler between",
			"%s has no room for another connection", at)
	case refusal.Code == "57P03":
		return problem("wait; see the server's log", "%s is starting up, shutting down or recovering", at)
	}
	return problem("see the server's log", "%s refuses the connection: %s (%s)", at, refusal.Message, refusal.Code)
}

// explainDial explains why a connection was not established.
func explainDial(err error, at string) (seen, cure string) {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("DNS: the name of %s is not known here", at), "correct the name, or this machine's resolver"
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("TCP: nothing listens at %s", at), "start what should listen there, or correct the address"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Sprintf("TCP: there is no route to %s", at), "see this machine's network and routes"
	case errors.Is(err, syscall.ENOENT):
		return fmt.Sprintf("there is no socket %s", at), "start what should listen there, or correct the path"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return fmt.Sprintf("TCP: %s did not answer in time", at), "see firewalls and network policies between, whether the host is up, and, if it is a pooler, whether it has connections left"
	}
	return fmt.Sprintf("%s ended the connection before it stood", at), "see its log, and whether another protocol is spoken there"
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// explainTLS explains why a TLS handshake failed. isTLS reports whether err is such a failure.
func explainTLS(err error) (seen, cure string, isTLS bool) {
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert *net.OpError // wraps an alert of the other side, whose own type crypto/tls does not export
	switch {
	case errors.As(err, &authority):
		return "shows a certificate of an authority that is not trusted here", "name its authority: tls.ca of a provider, sslrootcert in the database URL", true
	case errors.As(err, &hostname):
		return "shows a certificate for another name", "connect by the name in the certificate, or say server_name in the provider's tls", true
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "shows a certificate that is expired or not valid yet", "renew it, and see this machine's clock", true
	case errors.As(err, &invalid):
		return "shows a certificate that does not verify", "look at it with openssl s_client", true
	case errors.As(err, &record):
		return "does not speak TLS", "correct the scheme or the port", true
	case errors.As(err, &alert) && alert.Op == "remote error":
		return "refuses the handshake: " + alert.Err.Error(), "see which certificate and which TLS version it wants", true
	}
	return "", "", false
}

// lookAtTLS looks at an established connection, since the driver may have fallen back to plain text.
func lookAtTLS(ctx context.Context, x *examination) ([]Finding, error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	conn := pooled.Conn().PgConn().Conn()
	if secure, isSecure := conn.(*tls.Conn); isSecure {
		return []Finding{x.verified(secure)}, nil
	}
	remote, isTCP := conn.RemoteAddr().(*net.TCPAddr)
	if !isTCP {
		return []Finding{ok("none, and none is needed on a socket of this machine")}, nil
	}
	address, _ := netip.AddrFromSlice(remote.IP)
	return []Finding{judgePlainText(address.Unmap())}, nil
}

func judgePlainText(server netip.Addr) Finding {
	const cure = "add sslmode=verify-full and, for an authority of your own, sslrootcert=/path/ca.pem to the database URL"
	switch {
	case server.IsLoopback():
		return ok("none, and none is needed on this machine")
	case server.IsPrivate():
		return warning(cure, "payloads cross the network in plain text")
	}
	return problem(cure, "payloads cross a public network in plain text")
}

func (x *examination) verified(conn *tls.Conn) Finding {
	version := tls.VersionName(conn.ConnectionState().Version)
	config := x.Database.ConnConfig.TLSConfig
	if config != nil && config.InsecureSkipVerify && config.VerifyPeerCertificate == nil && config.VerifyConnection == nil {
		return warning("say sslmode=verify-full and, for an authority of your own, sslrootcert=/path/ca.pem in the database URL",
			"%s, but another host could pose as the server: its certificate is not verified", version)
	}
	return ok("%s, with a certificate that was verified", version)
}

// poolerPatience bounds the wait for a connection that a pooler may not have.
const poolerPatience = 2 * time.Second

// poolerRounds is how often a test of the pooler is repeated, since other clients may take the servers that it needs.
const poolerRounds = 20

// pooling describes the pooler between this machine and Postgres. The doctor finds it by the pooler's behaviour,
// since few poolers identify themselves. A server here is a connection of the pooler to Postgres.
type pooling struct {
	isPooler       bool // the backend's process id differs from the one in the login
	perTransaction bool // a session moves between servers, or shares one
	perStatement   bool // the pooler refuses transactions
	isNarrow       bool // the pooler gave no second server in time
	keepsPrepared  bool // a prepared statement follows its session to other servers
}

func lookAtPooler(ctx context.Context, x *examination) ([]Finding, error) {
	seen, err := x.observePooling(ctx)
	if err != nil {
		return nil, err
	}
	return []Finding{judgePooling(seen, x.Database.ConnConfig.DefaultQueryExecMode)}, nil
}

func judgePooling(seen pooling, mode pgx.QueryExecMode) Finding {
	const needsExec = "add default_query_exec_mode=exec to the database URL; or let PgBouncer 1.21 or later keep prepared statements (max_prepared_statements)"
	isSafe := mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol
	switch {
	case !seen.isPooler:
		return ok("none; prepared statements work")
	case seen.perStatement:
		return problem("set pool_mode = session or transaction for this database", "a pooler in statement mode, which refuses transactions")
	case seen.isNarrow && !seen.perTransaction:
		return warning(fmt.Sprintf("raise the pooler's pool_size to %d for each drainer", DaemonConnections), "a pooler that has no second connection to Postgres to give")
	case !seen.perTransaction:
		return ok("a pooler in session mode; prepared statements work")
	case isSafe:
		return ok("a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=%s)", mode)
	case mode == pgx.QueryExecModeDescribeExec:
		return problem(needsExec, "a pooler in transaction mode comes between describing a statement and running it")
	case seen.keepsPrepared:
		return ok("a pooler in transaction mode that keeps prepared statements")
	}
	return problem(needsExec, "a pooler in transaction mode loses prepared statements, which this database URL asks for")
}

func (x *examination) observePooling(ctx context.Context) (seen pooling, err error) {
	a, err := x.session(ctx)
	if err != nil {
		return seen, err
	}
	defer a.Close(context.WithoutCancel(ctx))
	home, err := backend(ctx, a)
	if err != nil {
		return seen, err
	}
	if seen.isPooler = home != a.PgConn().PID(); !seen.isPooler {
		return seen, nil
	}
	b, err := x.session(ctx)
	if err != nil {
		return seen, err
	}
	defer b.Close(context.WithoutCancel(ctx))
	waiting, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	for range poolerRounds {
		if seen.isDecided() {
			break
		}
		if err := seen.watchSessions(waiting, a, b); err != nil {
			return seen, err
		}
	}
	if seen.perTransaction {
		seen.keepsPrepared, err = keepsPrepared(ctx, a, b)
	}
	return seen, err
}

func (seen *pooling) isDecided() bool {
	return seen.perTransaction || seen.perStatement || seen.isNarrow
}

// watchSessions begins a transaction in one session, and checks whether it runs on the server that the other session has
// just used.
func (seen *pooling) watchSessions(waiting context.Context, a, b *pgx.Conn) error {
	home, err := backend(waiting, a)
	if err != nil {
		return err
	}
	taken, release, err := hold(waiting, b)
	if err != nil {
		seen.isNarrow = waiting.Err() != nil
		seen.perStatement = !seen.isNarrow
		return nil
	}
	defer release()
	if seen.perTransaction = taken == home; seen.perTransaction {
		return nil
	}
	now, err := backend(waiting, a)
	if waiting.Err() != nil {
		seen.perTransaction, seen.isNarrow = true, true // a gave its server back, and the pooler has no other
		return nil
	}
	seen.perTransaction = now != home
	return err
}

// keepsPrepared prepares a statement in one session, and checks whether another session can use the same name at the
// same server. A pooler that keeps prepared statements renames them, so that it can.
func keepsPrepared(ctx context.Context, a, b *pgx.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, poolerPatience)
	defer cancel()
	for range poolerRounds {
		statement := "drainer_doctor_" + rand.Text() // new in each round, since the server may know the earlier ones
		home, release, err := hold(ctx, a)
		if err != nil {
			return false, err
		}
		_, err = a.PgConn().Prepare(ctx, statement, "SELECT 1", nil)
		release()
		if err != nil {
			return false, unlessRefused(err)
		}
		taken, release, err := hold(ctx, b)
		if err != nil {
			return false, err
		}
		if taken == home {
			_, err = b.PgConn().Prepare(ctx, statement, "SELECT 1", nil)
		}
		release()
		if taken == home {
			return err == nil, unlessRefused(err)
		}
	}
	return false, nil // other clients took the servers in each round; the cure, exec, is right in both cases
}

// hold begins a transaction, which keeps a session at one server until release.
func hold(ctx context.Context, conn *pgx.Conn) (pid uint32, release func(), err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, nil, err
	}
	release = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }
	if pid, err = backend(ctx, conn); err != nil {
		release()
		return 0, nil, err
	}
	return pid, release, nil
}

// unlessRefused returns nil for an error of the server, because there the refusal is the result of the test.
func unlessRefused(err error) error {
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) {
		return nil
	}
	return err
}

// session opens a connection outside of the pool.
func (x *examination) session(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, x.pool.Config().ConnConfig.Copy())
}

func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var number int64
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()::bigint").Scan(&number)
	return uint32(number), err
}

// lookAtNotifications sends a notification from one session to another, on a channel that only it uses.
func lookAtNotifications(ctx context.Context, x *examination) ([]Finding, error) {
	listener, err := x.session(ctx)
	if err != nil {
		return nil, err
	}
	defer listener.Close(context.WithoutCancel(ctx))
	channel := "drainer_doctor_" + strings.ToLower(rand.Text())
	if _, err := listener.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return nil, err
	}
	// A pooler keeps the server's session after this connection ends.
	defer func() { _, _ = listener.Exec(context.WithoutCancel(ctx), "UNLISTEN *") }()
	if _, err := x.pool.Exec(ctx, "SELECT pg_notify($1::text, ''::text)", channel); err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	var used float64
	if err := x.pool.QueryRow(ctx, "SELECT pg_notification_queue_usage()").Scan(&used); err != nil {
		return nil, err
	}
	switch _, err := listener.WaitForNotification(waiting); {
	case err == nil && used > x.Limits.NotifyFull:
		return []Finding{warning("find the session that listens and keeps a transaction open, and end it: SELECT pid, usename, xact_start FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' ORDER BY xact_start; SELECT pg_terminate_backend(pid);",
			"%.0f %% of the server's queue of notifications is in use. From half of it on, drainer notifies no more and polls every 250 ms. When it is full, others' NOTIFY fails", 100*used)}, nil
	case err == nil:
		return []Finding{ok("LISTEN and NOTIFY work")}, nil
	case waiting.Err() != nil && ctx.Err() == nil:
		return []Finding{warning("if a quarter of a second matters: connect to Postgres itself, or to a pooler in session mode",
			"a notification did not arrive within %s, so new intents are found by polling, every 250 ms", notifyTime)}, nil
	default:
		return nil, err
	}
}

const (
	reachTimeout  = 5 * time.Second
	reachAtOnce   = 8
	soonExpired   = 14 * 24 * time.Hour
	alertPatience = 250 * time.Millisecond
)

// reachProviders connects to each provider as its adapter would, but sends nothing of the provider's protocol.
func reachProviders(ctx context.Context, patient Patient) (found []Finding) {
	if patient.Providers == nil {
		return name("providers", []Finding{notChecked("say --config FILE", "there is no configuration")})
	}
	if patient.Offline {
		for _, provider := range patient.Providers {
			seen := "not gone to, as --offline asks"
			if unread := patient.Unread[provider.Name]; len(unread) > 0 {
				slices.Sort(unread)
				seen += "; not read: " + strings.Join(slices.Compact(unread), ", ")
			}
			found = append(found, name("provider "+provider.Name, []Finding{notChecked("run it without --offline where the daemon runs", "%s", seen)})...)
		}
		return found
	}
	return sideBySide(patient.Providers, reachAtOnce, func(provider dispatch.Provider) []Finding {
		return name("provider "+provider.Name, reach(ctx, provider, patient.Now()))
	})
}

func reach(ctx context.Context, p dispatch.Provider, now time.Time) (found []Finding) {
	located, isLocated := p.Adapter.(dispatch.Located)
	if !isLocated {
		return []Finding{notChecked("", "its adapter does not say where it connects to")}
	}
	for _, destination := range located.Destinations() {
		way := reachOne(ctx, p, destination, now)
		found = append(found, way)
		if destination.Network == "program" && way.Verdict == OK {
			found = append(found, notChecked("drainer verify adapter --config FILE --provider "+p.Name+" starts it",
				"whether it starts and answers: it was not started"))
		}
	}
	if len(found) == 0 {
		found = append(found, notChecked("", "it connects to nothing itself"))
	}
	return found
}

func reachOne(ctx context.Context, p dispatch.Provider, to dispatch.Destination, now time.Time) Finding {
	if to.Network == "program" {
		return findProgram(to.Address)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	start := time.Now()
	conn, err := dial(ctx, p, to)
	switch {
	case errors.Is(err, dispatch.ErrEgressRefused):
		return problem(fmt.Sprintf("if it is meant: allow %s under providers.%s.egress (private: allow, or allow: [%[1]q]); addresses of metadata services are never allowed", to.Address, p.Name),
			"the egress rules forbid %s", to.Address)
	case err != nil:
		seen, cure := explainDial(err, to.Address)
		return problem(cure, "%s", seen)
	}
	defer func() { _ = conn.Close() }()
	took := short(time.Since(start))
	switch to.TLS {
	case dispatch.ImplicitTLS:
		return shakeHands(ctx, p, conn, to.Address, now)
	case dispatch.UpgradedTLS:
		return ok("TCP: %s answers in %s; TLS, which is agreed to later there, was not tried", to.Address, took)
	}
	return ok("TCP: %s answers in %s, without TLS", to.Address, took)
}

// findProgram searches for a program as its adapter does, but does not start it.
func findProgram(name string) Finding {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return problem("chmod +x it, for the user that the daemon runs as", "%s may not be executed", name)
	case err != nil:
		return problem("install it where the daemon runs, or correct the command", "there is no program %s", name)
	}
	return ok("there is the program %s", path)
}

func dial(ctx context.Context, p dispatch.Provider, to dispatch.Destination) (net.Conn, error) {
	if to.Network == "unix" {
		return (&net.Dialer{}).DialContext(ctx, to.Network, to.Address)
	}
	return p.Network.DialContext(ctx, to.Network, to.Address)
}

func shakeHands(ctx context.Context, p dispatch.Provider, conn net.Conn, address string, now time.Time) Finding {
	secure, wanted := client(p.Network.TLSConfig(), conn, address)
	err := secure.HandshakeContext(ctx)
	if err == nil && *wanted {
		err = awaitRefusal(secure)
	}
	if err != nil {
		if seen, cure, isTLS := explainTLS(err); isTLS {
			return problem(cure, "TLS: %s %s", address, seen)
		}
		return problem("see its log, and whether the port is one for TLS", "TLS: %s did not complete the handshake", address)
	}
	state := secure.ConnectionState()
	if left := state.PeerCertificates[0].NotAfter.Sub(now); left < soonExpired {
		return warning("have it renewed", "%s: its certificate expires in %s", address, left.Round(time.Hour))
	}
	return ok("%s: %s", address, tls.VersionName(state.Version))
}

// client returns a TLS client, and a flag that is set if the server asks for a certificate.
func client(config *tls.Config, conn net.Conn, address string) (secure *tls.Conn, wanted *bool) {
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	wanted = new(bool)
	certificates := config.Certificates
	config.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		*wanted = true
		for i := range certificates {
			if request.SupportsCertificate(&certificates[i]) == nil {
				return &certificates[i], nil
			}
		}
		return new(tls.Certificate), nil
	}
	return tls.Client(conn, config), wanted
}

// awaitRefusal waits for an alert of the server. With TLS 1.3, a client's handshake ends before the server has verified
// the client's certificate.
func awaitRefusal(conn *tls.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(alertPatience)); err != nil {
		return err
	}
	var alert *net.OpError
	if _, err := conn.Read(make([]byte, 1)); errors.As(err, &alert) && !alert.Timeout() {
		return err
	}
	return nil
}
