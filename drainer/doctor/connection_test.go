package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/egress"
	"github.com/agentoutbox/drainer/drainertest"
)

func TestAPoolerIsToldByWhatItDoes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		poolMode, query string
		size            int
		want            []Finding
	}{
		"session": {"session", "", 20, []Finding{
			{"pooler", OK, "a pooler in session mode; prepared statements work", ""},
			{"notifications", OK, "LISTEN and NOTIFY work", ""},
		}},
		"transaction": {"transaction", "", 20, []Finding{
			{"pooler", Problem, "a pooler in transaction mode loses prepared statements, which this database URL asks for", "add default_query_exec_mode=exec to the database URL; or let PgBouncer 1.21 or later keep prepared statements (max_prepared_statements)"},
			unheard,
		}},
		"transaction, with exec": {"transaction", "default_query_exec_mode=exec", 20, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"transaction, with one server connection": {"transaction", "default_query_exec_mode=exec", 1, []Finding{
			{"pooler", OK, "a pooler in transaction mode, and statements are not prepared (default_query_exec_mode=exec)", ""},
			unheard,
		}},
		"statement": {"statement", "", 20, []Finding{
			{"pooler", Problem, "a pooler in statement mode, which refuses transactions", "set pool_mode = session or transaction for this database"},
			unheard,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			w.Database = w.config(drainertest.PgBouncer(t, w.url(test.query), test.poolMode, test.size))
			found := w.examine()
			for _, want := range test.want {
				if !contains(found, want) {
					t.Errorf("want %+v, found %s", want, lines(found))
				}
			}
			for _, f := range found {
				if isExpected := contains(test.want, f); f.Verdict != OK && !isExpected {
					t.Errorf("also found %+v", f)
				}
			}
		})
	}
}

var unheard = Finding{
	"notifications", Warning, "a notification did not arrive within 2s, so new intents are found by polling, every 250 ms",
	"if a quarter of a second matters: connect to Postgres itself, or to a pooler in session mode",
}

func contains(findings []Finding, want Finding) bool {
	for _, f := range findings {
		if f == want {
			return true
		}
	}
	return false
}

func TestTheWayToAProviderIsTriedAsItsAdapterWouldGo(t *testing.T) {
	t.Parallel()
	certificate, pool := authority(t, 90*24*time.Hour)
	dying, dyingPool := authority(t, 24*time.Hour)
	dead, deadPool := authority(t, -time.Minute)
	wantsOne := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	trusting := func(roots *x509.CertPool) *tls.Config {
		return &tls.Config{RootCAs: roots, ServerName: "provider.internal", MinVersion: tls.VersionTLS12}
	}
	known := trusting(pool)
	known.Certificates = []tls.Certificate{certificate}
	stranger := trusting(pool)
	stranger.ServerName = "another.internal"
	plainPort, secretive := listen(t), secure(t, wantsOne)

	for name, test := range map[string]struct {
		to         dispatch.Destination
		rules      egress.Rules
		tls        *tls.Config
		verdict    Verdict
		seen, cure string
	}{
		"plain":          {to: dispatch.Destination{Network: "tcp", Address: plainPort}, verdict: OK},
		"well":           {to: implicit(secure(t, serving(certificate))), tls: trusting(pool), verdict: OK},
		"mutual":         {to: implicit(secretive), tls: known, verdict: OK},
		"upgraded later": {to: dispatch.Destination{Network: "tcp", Address: plainPort, TLS: dispatch.UpgradedTLS}, verdict: OK},
		"egress refused": {
			dispatch.Destination{Network: "tcp", Address: plainPort},
			egress.Rules{DenyPrivate: true},
			nil,
			Problem, "the egress rules forbid " + plainPort, "under providers.p.egress",
		},
		"an address of a metadata service": {
			dispatch.Destination{Network: "tcp", Address: "169.254.169.254:80"},
			egress.Rules{},
			nil,
			Problem, "the egress rules forbid 169.254.169.254:80", "never allowed",
		},
		"another authority": {
			implicit(secure(t, serving(certificate))),
			egress.Rules{},
			trusting(dyingPool),
			Problem, "certificate of an authority that is not trusted", "name its authority",
		},
		"another name": {
			implicit(secure(t, serving(certificate))),
			egress.Rules{},
			stranger,
			Problem, "a certificate for another name", "server_name",
		},
		"expired": {
			implicit(secure(t, serving(dead))),
			egress.Rules{},
			trusting(deadPool),
			Problem, "expired", "renew it",
		},
		"expires soon": {
			implicit(secure(t, serving(dying))),
			egress.Rules{},
			trusting(dyingPool),
			Warning, "its certificate expires in 24h0m0s", "have it renewed",
		},
		"wants a certificate": {
			implicit(secretive),
			egress.Rules{},
			trusting(pool),
			Problem, "refuses the handshake: tls: certificate required", "which certificate",
		},
		"no TLS": {
			implicit(greeting(t)),
			egress.Rules{},
			trusting(pool),
			Problem, "does not speak TLS", "correct the scheme",
		},
		"no socket": {
			dispatch.Destination{Network: "unix", Address: "/nowhere/to/be.sock"},
			egress.Rules{},
			nil,
			Problem, "there is no socket /nowhere/to/be.sock", "correct the path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			provider := dispatch.Provider{Name: "p", Adapter: located{test.to}, Network: dispatch.NewNetwork(test.rules.Dial, test.tls)}
			found := reach(t.Context(), provider, time.Now())
			if len(found) != 1 || found[0].Verdict != test.verdict || !has(found[0], test.seen, test.cure) {
				t.Errorf("want %s, %q, %q; found %s", test.verdict, test.seen, test.cure, lines(found))
			}
		})
	}
}

func TestTheDatabasesTLSIsLookedAt(t *testing.T) {
	t.Parallel()
	certificate, _ := authority(t, 24*time.Hour)
	other, _ := authority(t, 24*time.Hour)
	front := inFrontOfPostgres(t, certificate)
	for name, test := range map[string]struct {
		query             string
		verdict           Verdict
		check, seen, cure string
	}{
		"verified":          {"sslmode=verify-full&sslrootcert=" + rootFile(t, certificate), OK, "tls", "TLS 1.3, with a certificate that was verified", ""},
		"not verified":      {"sslmode=require", Warning, "tls", "another host could pose as the server", "sslmode=verify-full"},
		"another authority": {"sslmode=verify-full&sslrootcert=" + rootFile(t, other), Problem, "connection", "TLS: " + front + " shows a certificate", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			u, err := url.Parse(w.url(test.query))
			if err != nil {
				t.Fatal(err)
			}
			u.Host = front
			w.Database = w.config(u.String())
			if test.verdict != OK {
				w.finds(test.verdict, test.check, test.seen, test.cure)
				return
			}
			w.isWell()
		})
	}
}

func implicit(address string) dispatch.Destination {
	return dispatch.Destination{Network: "tcp", Address: address, TLS: dispatch.ImplicitTLS}
}

func serving(certificate tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{certificate}}
}

// secure serves TLS. It completes handshakes, and then waits until the client closes the connection.
func secure(t *testing.T, config *tls.Config) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, tls.Server(conn, config))
	})
}

// greeting serves connections without TLS, and sends the first bytes itself.
func greeting(t *testing.T) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = conn.Write([]byte("220 mail.example ESMTP\r\n")) })
}

// inFrontOfPostgres serves TLS in front of the Postgres server, which has no TLS.
func inFrontOfPostgres(t *testing.T, certificate tls.Certificate) (address string) {
	t.Helper()
	behind, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	const request = 8 // bytes of an SSLRequest
	return dispatchtest.ServeConns(t, func(conn net.Conn) {
		if _, err := io.CopyN(io.Discard, conn, request); err != nil {
			return
		}
		if _, err := conn.Write([]byte("S")); err != nil {
			return
		}
		client := tls.Server(conn, serving(certificate))
		if client.Handshake() != nil {
			return
		}
		postgres, err := net.Dial("tcp", behind.Host)
		if err != nil {
			return
		}
		defer postgres.Close()
		go func() {
			defer client.Close()
			_, _ = io.Copy(client, postgres)
		}()
		_, _ = io.Copy(postgres, client)
	})
}

func has(f Finding, seen, cure string) bool {
	return strings.Contains(f.Seen, seen) && strings.Contains(f.Cure, cure)
}

// authority returns a self-signed certificate for the name provider.internal and the address 127.0.0.1. It is valid for
// lifetime from now.
func authority(t *testing.T, lifetime time.Duration) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	serial, serialErr := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err := errors.Join(err, serialErr); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: serial.String()},
		DNSNames: []string{"provider.internal"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime + time.Second),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: parsed}, pool
}

func rootFile(t *testing.T, certificate tls.Certificate) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ca.pem")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	if err := os.WriteFile(path, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
