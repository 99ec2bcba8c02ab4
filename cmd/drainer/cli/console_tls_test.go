package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/drainer/config"
	"github.com/agentoutbox/drainer/drainertest"
)

// served is a console over TLS, without pages.
type served struct {
	t       *testing.T
	address string
	trusts  *x509.CertPool
	logged  lines
}

func serveTLS(t *testing.T, setup consoleSetup, authority *drainertest.Authority) *served {
	t.Helper()
	s := &served{t: t, trusts: x509.NewCertPool(), logged: make(lines, 100)}
	s.trusts.AppendCertsFromPEM([]byte(authority.PEM))
	encrypts, err := setup.encryption()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	log := slog.New(slog.NewTextHandler(s.logged, nil))
	access, err := setup.access(log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var pages http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if access != nil {
		pages = access.Guard(pages)
	}
	go func() { ended <- servePages(ctx, encrypts.listen(ctx, listener, log), pages, maxConnections, log) }()
	return s
}

// get asks over a new connection. It returns the status, and the certificate that the console showed.
func (s *served) get(shows tls.Certificate) (status int, shown *x509.Certificate, err error) {
	s.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs:              s.trusts, // by itself a client does not show a certificate that the server will refuse
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shows, nil },
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "https://"+s.address+"/", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Forwarded-User", "carol")
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	return answer.StatusCode, answer.TLS.PeerCertificates[0], nil
}

// pair returns the flags of a certificate for this machine, and its files.
func pair(t *testing.T, authority *drainertest.Authority) config.ConsoleTLS {
	t.Helper()
	certificate, key := authority.Issue(t, "127.0.0.1", time.Hour)
	return config.ConsoleTLS{CertificateFile: write(t, "tls.crt", certificate), KeyFile: write(t, "tls.key", key)}
}

func TestTheConsoleBelievesAProxyThatItsAuthorityKnows(t *testing.T) {
	t.Parallel()
	const proxy = "spiffe://mesh.example/ns/ingress/sa/proxy"
	mesh, other := drainertest.NewAuthority(t), drainertest.NewAuthority(t)
	setup := consoleSetup{Console: config.DefaultConsole()}
	setup.TLS, setup.ProxyCAFile, setup.ProxyNames = pair(t, mesh), write(t, "ca.crt", mesh.PEM), []string{"proxy.example", proxy}
	anywhere := serveTLS(t, setup, mesh)
	setup.TrustProxy = []string{"192.0.2.0/24"}
	elsewhere := serveTLS(t, setup, mesh)
	setup.TrustProxy = []string{"127.0.0.0/8"}
	here := serveTLS(t, setup, mesh)
	for name, test := range map[string]struct {
		console  *served
		signedBy *drainertest.Authority // none: the client shows no certificate
		name     string
		validFor time.Duration
		want     int // 0: the handshake fails
	}{
		"its URI":                   {anywhere, mesh, proxy, time.Hour, http.StatusOK},
		"its other name":            {anywhere, mesh, "proxy.example", time.Hour, http.StatusOK},
		"another workload":          {anywhere, mesh, "spiffe://mesh.example/ns/agents/sa/agent", time.Hour, http.StatusUnauthorized},
		"another authority":         {anywhere, other, proxy, time.Hour, 0},
		"an expired certificate":    {anywhere, mesh, proxy, -time.Minute, 0},
		"no certificate":            {anywhere, nil, "", 0, 0},
		"outside of its addresses":  {elsewhere, mesh, proxy, time.Hour, http.StatusUnauthorized},
		"at one of its addresses":   {here, mesh, proxy, time.Hour, http.StatusOK},
		"another one at an address": {here, mesh, "spiffe://mesh.example/ns/agents/sa/agent", time.Hour, http.StatusUnauthorized},
	} {
		var shows tls.Certificate
		if test.signedBy != nil {
			certificate, key := test.signedBy.Issue(t, test.name, test.validFor)
			var err error
			if shows, err = tls.X509KeyPair([]byte(certificate), []byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		if got, _, err := test.console.get(shows); got != test.want || (err != nil) != (test.want == 0) {
			t.Errorf("%s: %d, %v; want %d", name, got, err, test.want)
		}
	}
	if line := <-anywhere.logged; !strings.Contains(line, "TLS handshake error") {
		t.Errorf("a refused handshake is logged as %s", line)
	}
}

func TestARenewedCertificateIsTakenAndABrokenOneIsNot(t *testing.T) {
	t.Parallel()
	authority := drainertest.NewAuthority(t)
	certificate, key := authority.Issue(t, "127.0.0.1", time.Hour)
	both := write(t, "tls.pem", certificate+key) // one file cannot be renewed by half
	replace := func(text string) {
		t.Helper()
		if err := os.Rename(write(t, "next.pem", text), both); err != nil {
			t.Fatal(err)
		}
	}
	setup := consoleSetup{Console: config.DefaultConsole(), isBlock: true}
	setup.TLS = config.ConsoleTLS{CertificateFile: both, KeyFile: both}
	console := serveTLS(t, setup, authority)
	serial := func() string {
		t.Helper()
		status, shown, err := console.get(tls.Certificate{})
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d, %v", status, err)
		}
		return shown.SerialNumber.String()
	}
	first := serial()

	_, otherKey := authority.Issue(t, "127.0.0.1", time.Hour)
	replace(certificate + otherKey)
	if line := <-console.logged; !strings.Contains(line, "the one before stays in force") || !strings.Contains(line, "private key does not match") || !strings.Contains(line, both) {
		t.Errorf("a broken renewal is logged as %s", line)
	}
	if serial() != first {
		t.Error("a broken renewal replaced the certificate")
	}
	certificate, key = authority.Issue(t, "127.0.0.1", time.Hour)
	replace(certificate + key)
	if line := <-console.logged; !strings.Contains(line, "read again") { // so the broken renewal was logged once
		t.Errorf("a renewal is logged as %s", line)
	}
	if serial() == first {
		t.Error("the renewed certificate is not shown")
	}
}

func TestTheConsoleSpeaksNoOldTLS(t *testing.T) {
	t.Parallel()
	authority := drainertest.NewAuthority(t)
	setup := consoleSetup{Console: config.DefaultConsole()}
	setup.TLS = pair(t, authority)
	console := serveTLS(t, setup, authority)
	for version, speaks := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", console.address, &tls.Config{RootCAs: console.trusts, MinVersion: version, MaxVersion: version})
		if (err == nil) != speaks {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			conn.Close()
		}
	}
}

func TestProbesAreNotLoggedAndFailedHandshakesAtALimit(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	server := complaints{slog.New(slog.NewTextHandler(&log, nil)), rate.NewLimiter(0, 3)}
	for range 10 {
		io.WriteString(server, "http: TLS handshake error from 10.0.0.1:5: EOF\n")
		io.WriteString(server, "http: TLS handshake error from 10.0.0.1:5: read tcp 10.0.0.2:9465->10.0.0.1:5: read: connection reset by peer\n")
	}
	if log.Len() > 0 {
		t.Errorf("probes are logged:\n%s", log.String())
	}
	for range 10 {
		io.WriteString(server, "http: TLS handshake error from 10.0.0.1:5: remote error: tls: bad certificate\n")
		io.WriteString(server, "http: panic serving 10.0.0.1:5: EOF\n")
	}
	if failed, panics := strings.Count(log.String(), "bad certificate"), strings.Count(log.String(), "panic"); failed != 3 || panics != 10 {
		t.Errorf("%d of 3 failed handshakes and %d of 10 panics are logged:\n%s", failed, panics, log.String())
	}
}

func TestMistakesInTheConsolesTLSAreToldAtItsStart(t *testing.T) {
	t.Parallel()
	authority := drainertest.NewAuthority(t)
	files, others := pair(t, authority), pair(t, authority)
	ca, empty := write(t, "ca.crt", authority.PEM), write(t, "empty.pem", "")
	secure := []string{"--tls-certificate-file", files.CertificateFile, "--tls-key-file", files.KeyFile}
	for name, test := range map[string]struct {
		flags []string
		want  string
	}{
		"a certificate without its key": {[]string{"--tls-certificate-file", files.CertificateFile}, "TLS needs the file of a certificate"},
		"a key without its certificate": {[]string{"--tls-key-file", files.KeyFile}, "TLS needs the file of a certificate"},
		"another key":                   {[]string{"--tls-certificate-file", files.CertificateFile, "--tls-key-file", others.KeyFile}, "--tls-certificate-file " + files.CertificateFile + " with --tls-key-file " + others.KeyFile + ": tls: private key does not match public key"},
		"files that changed places":     {[]string{"--tls-certificate-file", files.KeyFile, "--tls-key-file", files.CertificateFile}, "may have been switched"},
		"no file":                       {[]string{"--tls-certificate-file", files.CertificateFile, "--tls-key-file", "/nope.key"}, "--tls-key-file: open /nope.key: no such file or directory"},
		"an authority without TLS":      {[]string{"--proxy-ca-file", ca, "--proxy-name", "proxy"}, "over TLS only"},
		"an authority without names":    {append(secure, "--proxy-ca-file", ca), "need each other"},
		"names without an authority":    {append(secure, "--proxy-name", "proxy"), "need each other"},
		"an empty name":                 {append(secure, "--proxy-ca-file", ca, "--proxy-name", "", "--trust-proxy", "10.0.0.0/8"), "need each other"},
		"an authority that is empty":    {append(secure, "--proxy-ca-file", empty, "--proxy-name", "proxy"), "--proxy-ca-file: " + empty + " holds no certificate in PEM"},
		"a proxy beside tokens":         {append(secure, "--proxy-ca-file", ca, "--proxy-name", "proxy", "--tokens", "people"), "[proxy-ca-file tokens] were all set"},
		"TLS without authentication":    {append(secure, "--listen", ":9465"), "--listen :9465 is open to other machines"},
		"a text that belongs in a file": {[]string{"--tls-certificate-file", files.CertificateFile, "--tls-key-file", "-----BEGIN\ncanary"}, "not their text"},
		"no authority":                  {append(secure, "--proxy-ca-file", "/nope.crt", "--proxy-name", "proxy"), "--proxy-ca-file: open /nope.crt"},
	} {
		got := run(t, append([]string{"console"}, test.flags...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, test.want) || strings.Contains(got.stderr, "canary") {
			t.Errorf("%s: %d, %s; want %q", name, got.code, got.stderr, test.want)
		}
	}
}

func TestTheConsoleSaysThatItIsAtAnHTTPSAddress(t *testing.T) {
	t.Parallel()
	databaseURL := drainertest.Database(t)
	ctx, end := context.WithTimeout(t.Context(), drainertest.Patience)
	defer end()
	said := endsOnce{word: "The console is at https://127.0.0.1:", end: end}
	root := newRoot(builtins(t))
	root.SetErr(&said)
	files := pair(t, drainertest.NewAuthority(t))
	if code := execute(ctx, root, []string{"console", "--database-url", databaseURL, "--listen", "127.0.0.1:0", "--tls-certificate-file", files.CertificateFile, "--tls-key-file", files.KeyFile}); code != exitOK || !strings.Contains(said.String(), said.word) {
		t.Errorf("%d: %s", code, said.String())
	}
}
