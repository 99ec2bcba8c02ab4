package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/duration"
)

func TestMistakesInTheWayOut(t *testing.T) {
	t.Parallel()
	certificate, _, _ := authority(t)
	mistakes{
		"no such choice": {provider("adapter: fake\negress: {private: no}\n" + wellFormedTool), []string{
			"5:23: providers.p.egress.private: want allow or deny",
		}},
		"no destination": {provider("adapter: fake\negress: {allow: [api.example.com, https://api.example.com]}\n" + wellFormedTool), []string{
			"5:39: providers.p.egress.allow.1: want a name, *.name, an address or a block such as 10.0.0.0/8, each with :port or without",
		}},
		"for all, said once": {"version: 1\negress: {private: no}\nproviders:\n  p: {adapter: fake, " + wellFormedTool + "}\n  q: {adapter: fake, " + wellFormedTool + "}\n", []string{
			"2:19: egress.private: want allow or deny",
		}},
		"no authority": {provider("adapter: fake\ntls: {ca: /etc/ca.pem}\n" + wellFormedTool), []string{
			"5:15: providers.p.tls.ca: holds no certificate in PEM; write ${file:/path/to/ca.pem}",
		}},
		"a certificate alone": {provider("adapter: fake\ntls: {certificate: " + quoted(certificate) + "}\n" + wellFormedTool), []string{
			"5:5: providers.p.tls.key: is missing; the certificate alone proves nothing",
		}},
		"a key alone": {provider("adapter: fake\ntls: {key: x}\n" + wellFormedTool), []string{
			"5:5: providers.p.tls.certificate: is missing; the key alone proves nothing",
		}},
		"no pair": {provider("adapter: fake\ntls: {key: x, certificate: y}\n" + wellFormedTool), []string{
			"5:32: providers.p.tls.certificate: certificate and key do not make a pair, in PEM",
		}},
	}.test(t)
}

func TestAProviderInheritsTheEgressOfAllFieldByField(t *testing.T) {
	t.Parallel()
	address := strings.Replace(listen(t), "127.0.0.1", "0.0.0.0", 1) // this machine, by an address that a proxy is asked for
	for name, test := range map[string]struct {
		all, own string
		allowed  bool
	}{
		"nothing said":     {"{}", "{}", true},
		"denied for all":   {"{private: deny}", "{}", false},
		"allowed to one":   {"{private: deny}", "{private: allow}", true},
		"denied to one":    {"{}", "{private: deny}", false},
		"one list for all": {"{allow: [api.example.com]}", "{}", false},
		"its own list":     {"{allow: [api.example.com]}", "{allow: [0.0.0.0]}", true},
		"the rest holds":   {"{private: deny}", "{allow: [0.0.0.0]}", false},
		"no proxy for one": {"{proxy: 'http://127.0.0.1:1'}", "{proxy: ''}", true},
	} {
		network := loadNetwork(t, "version: 1\negress: "+test.all+"\nproviders:\n  p: {adapter: fake, egress: "+test.own+", "+wellFormedTool+"}\n")
		conn, err := network.DialContext(t.Context(), "tcp", address)
		if test.allowed != (err == nil) || (!test.allowed && !errors.Is(err, dispatch.ErrEgressRefused)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
	}
}

func TestAProviderTrustsItsAuthorityAndShowsItsCertificate(t *testing.T) {
	t.Parallel()
	certificate, key, pool := authority(t)
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go greet(listener)

	mutual := fmt.Sprintf("{ca: %s, certificate: %[1]s, key: %s, server_name: provider.internal}", quoted(certificate), quoted(key))
	for name, test := range map[string]struct {
		tls  string
		good bool
	}{
		"mutual":                {mutual, true},
		"without a certificate": {"{ca: " + quoted(certificate) + ", server_name: provider.internal}", false},
		"another authority":     {strings.Replace(mutual, quoted(certificate), quoted(otherAuthority(t)), 1), false},
		"with another name":     {strings.Replace(mutual, "provider.internal", "another.internal", 1), false},
	} {
		text := "version: 1\nproviders:\n  p:\n    adapter: fake\n    " + wellFormedTool + "\n    tls: " + test.tls + "\n"
		network := loadNetwork(t, text)
		if err := handshake(t, network, listener.Addr().String()); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheWayOutOfEachProviderIsKeptForOthersToTry(t *testing.T) {
	t.Parallel()
	address := listen(t)
	loaded, err := loadText(t, "version: 1\nproviders:\n  open: {adapter: fake, "+wellFormedTool+"}\n  shut: {adapter: fake, egress: {private: deny}, "+wellFormedTool+"}\n")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := loaded.Providers[0].Network.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := loaded.Providers[1].Network.DialContext(t.Context(), "tcp", address); !errors.Is(err, dispatch.ErrEgressRefused) {
		t.Errorf("shut: %v", err)
	}
}

// handshake waits for the greeting: a client hears only then that its
// certificate was refused.
func handshake(t *testing.T, network dispatch.Network, address string) error {
	t.Helper()
	conn, err := network.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = tls.Client(conn, network.TLSConfig()).Read(make([]byte, 1))
	return err
}

func greet(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_, _ = conn.Write([]byte("!"))
		}()
	}
}

// loadNetwork gives the way out that the only provider's adapter was given.
func loadNetwork(t *testing.T, text string) (network dispatch.Network) {
	t.Helper()
	registry, err := dispatch.NewRegistry(dispatch.Kind{Name: "fake", New: func(spec dispatch.Spec) (dispatch.Adapter, error) {
		network = spec.Network
		return newFake(spec)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load("drainer.yaml", []byte(text), registry, fakeSecrets(), everything); err != nil {
		t.Fatal(err)
	}
	return network
}

func listen(t *testing.T) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(net.Conn) {})
}

func quoted(text string) string { return fmt.Sprintf("%q", text) }

func otherAuthority(t *testing.T) string {
	certificate, _, _ := authority(t)
	return certificate
}

// authority vouches for itself, for either side of a connection.
func authority(t *testing.T) (certificate, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "provider"}, DNSNames: []string{"provider.internal"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(certificate))
	return certificate, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})), pool
}

func TestAConsoleSaysWhoMayReadAndHowItsProxyProvesItself(t *testing.T) {
	t.Parallel()
	const (
		needs    = "2:1: console: a proxy's authority and the proxy's names need each other, because the authority may sign the certificates of other programs, too"
		both     = "2:1: console: TLS needs the file of a certificate and the file of its key"
		keepOne  = "2:1: console: tokens, oidc and a proxy (trust_proxy, proxy_ca_file) exclude each other; keep one"
		overTLS  = "2:1: console: a proxy shows its certificate over TLS only: give the console a certificate and a key, too"
		stranger = "2:19: console.listen: is open to other machines; say who may read with tokens, oidc, trust_proxy or proxy_ca_file, or listen on 127.0.0.1"
	)
	serves := func(fields string) string { return "version: 1\nconsole: {listen: ':9465'" + fields + "}\n" }
	const pair, proxy = ", tls: {certificate_file: /c, key_file: /k}", ", proxy_ca_file: /ca, proxy_names: [proxy.example]"
	mistakes{
		"TLS alone":            {serves(pair), []string{stranger}},
		"no key":               {serves(", tokens: /t, tls: {certificate_file: /c}"), []string{both}},
		"no certificate":       {serves(", tokens: /t, tls: {key_file: /k}"), []string{both}},
		"a proxy without TLS":  {serves(proxy), []string{overTLS}},
		"a proxy without name": {serves(pair + ", proxy_ca_file: /ca"), []string{needs}},
		"a proxy of any name":  {serves(pair + ", proxy_ca_file: /ca, proxy_names: ['']"), []string{needs}},
		"names alone":          {serves(pair + ", trust_proxy: [10.0.0.0/8], proxy_names: [proxy.example]"), []string{needs}},
		"a proxy and tokens":   {serves(pair + proxy + ", tokens: /t"), []string{keepOne}},
		"a range and tokens":   {serves(", tokens: /t, trust_proxy: [10.0.0.0/8]"), []string{keepOne}},
		"the text of a file":   {serves(", tokens: /t, tls: {certificate_file: /c, key_file: \"canary\\nof a key\"}"), []string{"2:1: console: TLS takes the paths of its files, not their text: write /path/to/tls.key without ${file:…}"}},
	}.test(t)
	for _, good := range []string{pair + proxy, pair + proxy + ", trust_proxy: [10.0.0.0/8]", pair + ", tokens: /t"} {
		if _, err := loadText(t, serves(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

func TestPagesNameOneChannelEachThatCanBeReached(t *testing.T) {
	t.Parallel()
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	many := ""
	for n := range 17 {
		many += fmt.Sprintf("  - {name: c%d, slack: {webhook_url: \"http://s\"}}\n", n)
	}
	one := func(page string) string { return "version: 1\npages:\n  - " + page + "\n" }
	mistakes{
		"no list":        {"version: 1\npages: {slack: {}}\n", []string{"2:1: pages: want a list"}},
		"no channel":     {one("{name: pager}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook"}},
		"two channels":   {one("{alertmanager: {url: \"http://a\"}, slack: {webhook_url: \"http://s\"}}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook"}},
		"misspelt":       {one("{slak: {webhook_url: \"http://s\"}}"), []string{"3:5: pages.0: want one channel: one of pagerduty, slack, alertmanager, webhook", `3:6: pages.0: unknown field "slak"; did you mean "slack"?`}},
		"twice":          {one("{slack: {webhook_url: \"http://s\"}}\n  - {slack: {webhook_url: \"http://t\"}}"), []string{"4:5: pages.1.name: there is another channel of this name; give each a name of its own"}},
		"no service":     {one("{pagerduty: {}}"), []string{"3:6: pages.0.pagerduty.routing_key: say which service to page: the integration key of its Events API v2"}},
		"no address":     {one("{slack: {}}"), []string{"3:6: pages.0.slack.webhook_url: want an address that begins with https:// or http://"}},
		"no protocol":    {one("{alertmanager: {url: \"alertmanager:9093\"}}"), []string{"3:26: pages.0.alertmanager.url: want an address that begins with https:// or http://"}},
		"no secret":      {one("{webhook: {url: \"http://w\"}}"), []string{"3:6: pages.0.webhook.secret: want whsec_ and 24 to 64 random bytes in base64"}},
		"short secret":   {one("{webhook: {url: \"http://w\", secret: whsec_c2hvcnQ=}}"), []string{"3:41: pages.0.webhook.secret: want whsec_ and 24 to 64 random bytes in base64"}},
		"never again":    {"version: 1\npage_repeat: 0s\n", []string{"2:14: page_repeat: must be longer than 0"}},
		"no duration":    {"version: 1\npage_repeat: often\n", []string{"2:14: page_repeat: " + duration.Hint}},
		"no console":     {"version: 1\npage_console: outbox.example\n", []string{"2:15: page_console: want an http or https address, such as https://outbox.example.com"}},
		"another scheme": {"version: 1\npage_console: 'javascript://outbox.example'\n", []string{"2:15: page_console: want an http or https address, such as https://outbox.example.com"}},
		"no host":        {"version: 1\npage_console: 'https://:443'\n", []string{"2:15: page_console: want an http or https address, such as https://outbox.example.com"}},
		"a login":        {"version: 1\npage_console: 'https://ann:hunter2@outbox.example'\n", []string{"2:15: page_console: is in every page; leave out a login, a query and a fragment"}},
		"a query":        {"version: 1\npage_console: 'https://outbox.example/?token=x'\n", []string{"2:15: page_console: is in every page; leave out a login, a query and a fragment"}},
		"a fragment":     {"version: 1\npage_console: 'https://outbox.example/#top'\n", []string{"2:15: page_console: is in every page; leave out a login, a query and a fragment"}},
		"an odd letter":  {"version: 1\npage_console: 'https://outbox.example/a|b'\n", []string{"2:15: page_console: has a letter that a link cannot have; write it as a browser shows it"}},
		"no such kind":   {one("{slack: {webhook_url: \"http://s\"}, match: {kinds: [key_collision, outage]}}"), []string{"3:71: pages.0.match.kinds.1: want one of " + join(incident.Kinds())}},
		"no severity":    {one("{slack: {webhook_url: \"http://s\"}, match: {severities: [critical]}}"), []string{"3:61: pages.0.match.severities.0: want one of page, warning"}},
		"both":           {one("{slack: {webhook_url: \"http://s\"}, match: {kinds: [key_collision], severities: [page]}}"), []string{"3:72: pages.0.match.severities: name kinds or severities; a kind has one severity"}},
		"too many":       {"version: 1\npages:\n" + many, []string{"2:1: pages: want 16 channels at most"}},
		"another field":  {one("{webhook: {url: \"http://w\", secret: " + key + ", token: x}}"), []string{`3:81: pages.0.webhook: unknown field "token"; known here: secret, url`}},
	}.test(t)
}

func TestMistakesInPagesNeverShowASecret(t *testing.T) {
	t.Parallel()
	_, err := loadText(t, `version: 1
pages:
  - {slack: {webhook_url: "${env:TOKEN}"}}
  - {webhook: {url: "https://${env:TOKEN}", secret: "${env:TOKEN}"}}
  - {alertmanager: {url: "${env:TOKEN}"}}
`)
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 || strings.Contains(err.Error(), "leak me") {
		t.Errorf("got %v; want four problems and no secret", err)
	}
}
