package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// forwarder is an HTTP proxy: it resolves any name to the one server behind it.
type forwarder struct {
	*httptest.Server
	behind string
	asked  atomic.Pointer[string] // the last destination
	wants  string                 // the value of Proxy-Authorization that it demands, if not empty
}

func startForwarder(t *testing.T, behind, wants string) *forwarder {
	t.Helper()
	f := &forwarder{behind: behind, wants: wants}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || f.wants != "" && r.Header.Get("Proxy-Authorization") != f.wants {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	f.asked.Store(&r.Host)
	to, err := net.Dial("tcp", f.behind)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	_, _ = io.WriteString(from, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(to, buffered); _ = to.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(from, to)
}

// greeter is a server that speaks first, as a mail server does.
func greeter(t *testing.T, greeting string) (address string) {
	t.Helper()
	return dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.WriteString(conn, greeting) })
}

func proxied(t *testing.T, text string, rules Rules) Rules {
	t.Helper()
	proxy, err := ParseProxy(text)
	if err != nil {
		t.Fatal(err)
	}
	rules.Proxy = proxy
	return rules
}

func TestConnectionsGoThroughTheProxyAndItResolvesNames(t *testing.T) {
	t.Parallel()
	forwarder := startForwarder(t, greeter(t, "220 ready\r\n"), "Basic dXNlcjpwYSBzcw==")
	address := strings.Replace(forwarder.URL, "http://", "http://user:pa%20ss@", 1)
	conn, err := proxied(t, address, Rules{}).Dial(t.Context(), "tcp", "mail.nowhere.invalid:25")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if said, err := io.ReadAll(conn); err != nil || string(said) != "220 ready\r\n" {
		t.Errorf("the server behind the proxy said %q, %v", said, err)
	}
	if got := *forwarder.asked.Load(); got != "mail.nowhere.invalid:25" {
		t.Errorf("the proxy was asked for %s", got)
	}
}

// A sidecar is on this machine, and not on the proxy's.
func TestThisMachineIsReachedDirectly(t *testing.T) {
	t.Parallel()
	_, port, _ := net.SplitHostPort(greeter(t, "220 ready\r\n"))
	for _, host := range []string{"127.0.0.1", "localhost", "LocalHost", "::ffff:127.0.0.1"} {
		conn, err := proxied(t, "http://127.0.0.1:1", Rules{}).Dial(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		_ = conn.Close()
	}
}

func TestARequestOverTLSGoesThroughTheProxy(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(server.Close)
	forwarder := startForwarder(t, server.Listener.Addr().String(), "")
	client := server.Client() // it trusts example.com
	client.Transport.(*http.Transport).DialContext = proxied(t, forwarder.URL, Rules{DenyPrivate: true}).Dial
	answer, err := client.Get("https://example.com/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if said, _ := io.ReadAll(answer.Body); string(said) != "hello" {
		t.Errorf("the provider said %q", said)
	}
}

func TestTheRulesHoldInFrontOfTheProxy(t *testing.T) {
	t.Parallel()
	forwarder := startForwarder(t, greeter(t, "hello"), "")
	for name, test := range map[string]struct {
		rules   Rules
		to      string
		allowed bool
	}{
		"any name":                          {Rules{DenyPrivate: true}, "api.example.com:443", true},
		"a metadata address":                {Rules{}, "169.254.169.254:80", false},
		"the same inside of IPv6":           {Rules{}, "[::ffff:169.254.169.254]:80", false},
		"a private address that is denied":  {Rules{DenyPrivate: true}, "10.0.0.1:443", false},
		"a private address":                 {Rules{}, "10.0.0.1:443", true},
		"an address as one number":          {Rules{}, "2852039166:80", false},
		"an address in hexadecimal":         {Rules{}, "0xA9FEA9FE:80", false},
		"an address in two parts":           {Rules{}, "169.0xfea9fe:80", false},
		"an address with a dot behind it":   {Rules{}, "169.254.169.254.:80", false},
		"the proxy itself":                  {Rules{DenyPrivate: true}, "LocalHost.:443", false},
		"a name below it":                   {Rules{DenyPrivate: true}, "a.localhost:443", false},
		"a name with numbers":               {Rules{DenyPrivate: true}, "7.0x7f.example:443", true},
		"a name that is allowed":            {Rules{Allow: targets(t, "*.example.com")}, "api.example.com:443", true},
		"another name":                      {Rules{Allow: targets(t, "*.example.com")}, "api.example.org:443", false},
		"an address that is allowed":        {Rules{Allow: targets(t, "10.0.0.0/8")}, "10.0.0.1:443", true},
		"a name, where addresses are named": {Rules{Allow: targets(t, "10.0.0.0/8")}, "api.example.com:443", false},
	} {
		forwarder.asked.Store(nil)
		conn, err := proxied(t, forwarder.URL, test.rules).Dial(t.Context(), "tcp", test.to)
		if err == nil {
			_ = conn.Close()
		}
		if test.allowed != (err == nil) || !test.allowed && !errors.Is(err, dispatch.ErrEgressRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if asked := forwarder.asked.Load(); !test.allowed && asked != nil {
			t.Errorf("%s: the proxy was asked for %s", name, *asked)
		}
	}
}

func TestAProxyThatDoesNotServeFailsTheConnectionWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, test := range map[string]struct{ address, want string }{
		"wrong credentials": {startForwarder(t, "127.0.0.1:1", "Basic right").URL, "HTTP 407"},
		"nothing behind it": {startForwarder(t, "127.0.0.1:1", "").URL, "HTTP 502"},
		"no proxy":          {"http://" + greeter(t, "SSH-2.0-canary\r\n"), "no HTTP"},
		"gone":              {gone.URL, "refused"},
	} {
		address := strings.Replace(test.address, "http://", "http://user:canary@", 1)
		_, err := proxied(t, address, Rules{}).Dial(t.Context(), "tcp", "api.example.com:443")
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestASilentProxyIsLeftWhenTheCallIsOver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	silent := dispatchtest.ServeConns(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1)) // the proxy has got the request
		cancel()
		_, _ = io.Copy(io.Discard, conn)
	})
	_, err := proxied(t, "http://"+silent, Rules{}).Dial(ctx, "tcp", "api.example.com:443")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// It is not parallel: the environment belongs to the process.
func TestTheEnvironmentChoosesAProxyOnlyWhereItIsTold(t *testing.T) {
	forwarder := startForwarder(t, greeter(t, "hello"), "")
	t.Setenv("HTTPS_PROXY", forwarder.URL)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", ".internal.example")
	proxy, err := ParseProxy(FromEnvironment)
	if err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{
		"api.example.com:443":      forwarder.URL,
		"api.example.com:8443":     forwarder.URL,
		"api.example.com:80":       "http://127.0.0.1:1",
		"db.internal.example:5432": "",
	} {
		host, port, _ := net.SplitHostPort(to)
		chosen, err := proxy.choose(host, port)
		got := ""
		if chosen != nil {
			got = chosen.String()
		}
		if err != nil || got != want {
			t.Errorf("%s goes through %q, %v, want %q", to, got, err, want)
		}
	}
	direct := greeter(t, "hello")
	conn, err := Rules{}.Dial(t.Context(), "tcp", direct)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if asked := forwarder.asked.Load(); asked != nil {
		t.Errorf("rules without a proxy asked that of the environment for %s", *asked)
	}
	t.Setenv("HTTPS_PROXY", "http://proxy.example")
	t.Setenv("HTTP_PROXY", "http://user:pass@proxy.example")
	if proxy, err = ParseProxy(FromEnvironment); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]string{"443": "http://proxy.example:80", "80": "http://user:pass@proxy.example:80"} {
		if chosen, err := proxy.choose("api.example.com", port); err != nil || chosen.String() != want {
			t.Errorf("port %s goes through %v, %v, want %s", port, chosen, err, want)
		}
	}
	t.Setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
	if _, err := ParseProxy(FromEnvironment); err == nil {
		t.Error("a proxy of another kind is taken")
	}
}

func TestAProxyIsAURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://proxy.example:3128":  "http://proxy.example:3128",
		"http://proxy.example":       "http://proxy.example:80",
		"https://proxy.example/":     "https://proxy.example:443/",
		"proxy.example:3128":         "",
		"socks5://proxy.example":     "",
		"http://":                    "",
		"http://proxy.example/path":  "",
		"http://user:canary%zz@host": "",
	} {
		proxy, err := ParseProxy(text)
		if want == "" {
			if err == nil || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, _ := proxy.choose("api.example.com", "443")
		if parsed, _ := url.Parse(want); got.String() != parsed.String() {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
