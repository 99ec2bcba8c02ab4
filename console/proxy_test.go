package console_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/agentoutbox/drainer/console"
)

// The listener verifies the certificate. What it did not verify, anyone may have made.
func TestAProxyIsBelievedByAVerifiedNameAlone(t *testing.T) {
	t.Parallel()
	const id = "spiffe://mesh.example/proxy"
	spiffe, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	all, elsewhere := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("198.51.100.0/24")
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "only-its-common-name"}, DNSNames: []string{"proxy.example", "spiffe://mesh.example/dns"}, URIs: []*url.URL{spiffe}}
	verified := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, {DNSNames: []string{"authority.example"}}}}}
	for name, test := range map[string]struct {
		state   *tls.ConnectionState
		names   []string
		trusted []netip.Prefix
		want    bool
	}{
		"by its URI":                      {verified, []string{id}, nil, true},
		"by one of two names":             {verified, []string{"other.example", "proxy.example"}, nil, true},
		"by the beginning of a name":      {verified, []string{"spiffe://mesh.example/prox", "proxy"}, nil, false},
		"by its common name":              {verified, []string{"only-its-common-name"}, nil, false},
		"by a URI that is a DNS name":     {verified, []string{"spiffe://mesh.example/dns"}, nil, false},
		"by the name of its authority":    {verified, []string{"authority.example"}, nil, false},
		"unverified":                      {&tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}, []string{id}, nil, false},
		"without TLS":                     {nil, []string{id}, nil, false},
		"without TLS at an address":       {nil, []string{id}, []netip.Prefix{all}, false},
		"by its name at an address":       {verified, []string{id}, []netip.Prefix{elsewhere, all}, true},
		"by its name at another address":  {verified, []string{id}, []netip.Prefix{elsewhere}, false},
		"by another name at its address":  {verified, []string{"other.example"}, []netip.Prefix{all}, false},
		"by nothing that was configured":  {verified, nil, nil, false},
		"by its address, as without mTLS": {nil, nil, []netip.Prefix{all}, true},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil) // it comes from 192.0.2.1
		request.TLS = test.state
		request.Header.Set("X-User", "carol")
		who, known := console.Proxy{Trusted: test.trusted, Names: test.names, UserHeader: "X-User"}.Who(request)
		if known != test.want || (who.Name == "carol") != test.want {
			t.Errorf("%s: %+v, %t", name, who, known)
		}
	}
}

func TestOverItsOwnTLSTheCookieIsSecure(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		server := serve(asTokens(t).Guard(http.NotFoundHandler()))
		t.Cleanup(server.Close)
		client := server.Client()
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		answer, err := client.PostForm(server.URL+"/login", url.Values{"token": {"alice-has-a-long-token-of-her-own"}})
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if cookies := answer.Cookies(); len(cookies) != 1 || cookies[0].Secure != (name == "https") {
			t.Errorf("over %s the cookies are %v", name, cookies)
		}
	}
}
