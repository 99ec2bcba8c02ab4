package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connect opens the pool and makes its first connection.
func (x *examination) connect(ctx context.Context) ([]Finding, error) {
	config := x.Database.Copy()
	config.MaxConns = atOnce
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.ConnConfig.RuntimeParams["application_name"] = "drainer doctor"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return []Finding{problem("correct the database URL", "no pool of connections can be made of the database URL")}, err
	}
	ctx, cancel := context.WithTimeout(ctx, x.Limits.Check) // a pooler may take a login, and have no server for it
	defer cancel()
	at, err := firstConnection(ctx, pool)
	if err != nil {
		pool.Close()
		return []Finding{diagnose(err, config.ConnConfig)}, err
	}
	x.pool = pool
	return []Finding{ok("connected to %s as %s, database %s", at, config.ConnConfig.User, config.ConnConfig.Database)}, nil
}

// firstConnection says where it leads: by the name in the URL, or, where there
// are several, by the address that it came to.
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

// diagnose tells apart where connecting ended. The driver's own words are not
// repeated, but for those that the server sent.
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
		return problem("correct user and password in the database URL; see pg_hba.conf for how the server checks them",
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
		return problem("wait; the server's log tells how far it is", "%s is starting up, shutting down or recovering", at)
	}
	return problem("see the server's log", "%s refuses the connection: %s (%s)", at, refusal.Message, refusal.Code)
}

// explainDial is about a connection that never stood.
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

// explainTLS is about a handshake that failed.
func explainTLS(err error) (seen, cure string, isTLS bool) {
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert *net.OpError // the other side's, whose type crypto/tls keeps to itself
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
