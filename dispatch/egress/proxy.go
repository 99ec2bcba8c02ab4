package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/agentoutbox/drainer/dispatch"
)

// Proxy is the HTTP proxy of a provider's connections. Each connection is made with its own CONNECT. The proxy
// resolves the names.
type Proxy struct {
	choose func(host, port string) (*url.URL, error) // returns nil to connect directly
}

// FromEnvironment is the setting that uses HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
const FromEnvironment = "environment"

const (
	connectTimeout = 10 * time.Second
	mostOfAnswer   = 64 << 10 // the longest answer of a proxy, in bytes
)

var errProxy = errors.New(`want http://host:port, https://host:port, or environment`)

// ParseProxy reads a setting: a URL, perhaps with a user and a password, or FromEnvironment. Its error repeats
// nothing of the setting.
func ParseProxy(text string) (*Proxy, error) {
	if text == FromEnvironment {
		config := httpproxy.FromEnvironment()
		for _, set := range []string{config.HTTPProxy, config.HTTPSProxy} {
			if set == "" {
				continue
			}
			if _, err := proxyURL(set); err != nil {
				return nil, fmt.Errorf("HTTP_PROXY or HTTPS_PROXY: %w", err)
			}
		}
		choose := config.ProxyFunc()
		return &Proxy{func(host, port string) (*url.URL, error) {
			scheme := "https"
			if port == "80" {
				scheme = "http"
			}
			proxy, err := choose(&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, port)})
			if proxy == nil || err != nil {
				return nil, err
			}
			return proxyURL(proxy.String()) // adds the default port
		}}, nil
	}
	proxy, err := proxyURL(text)
	if err != nil {
		return nil, err
	}
	return &Proxy{func(string, string) (*url.URL, error) { return proxy, nil }}, nil
}

func proxyURL(text string) (*url.URL, error) {
	proxy, err := url.Parse(text)
	if err != nil || (proxy.Scheme != "http" && proxy.Scheme != "https") || proxy.Hostname() == "" ||
		(proxy.Path != "" && proxy.Path != "/") || proxy.RawQuery != "" {
		return nil, errProxy
	}
	if proxy.Port() == "" {
		proxy.Host = net.JoinHostPort(proxy.Hostname(), map[string]string{"http": "80", "https": "443"}[proxy.Scheme])
	}
	return proxy, nil
}

// likeAddress matches a name that many resolvers read as an IPv4 address, in parts, octal or hexadecimal. No name
// that can be registered ends like that.
var likeAddress = regexp.MustCompile(`(^|\.)(0x[0-9a-f]*|[0-9]+)$`)

// through connects through the proxy. It checks the host if the host is written as an address. The address of a name
// is not known here, so only the name is checked.
func (r Rules) through(ctx context.Context, proxy *url.URL, host, port string, isNamed bool) (net.Conn, error) {
	name := canonical(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		name = "127.0.0.1" // at the proxy, that is the proxy's own machine
	}
	if literal, err := netip.ParseAddr(name); err == nil {
		if err := r.check(net.JoinHostPort(literal.String(), port), isNamed); err != nil {
			return nil, err
		}
	} else if !isNamed || likeAddress.MatchString(name) {
		return nil, dispatch.ErrEgressRefused
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := dispatch.PlainDialer().DialContext(ctx, "tcp", proxy.Host)
	if err != nil {
		return nil, fmt.Errorf("the proxy: %w", err)
	}
	if proxy.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: proxy.Hostname()})
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends reads and writes under way
	early, err := connect(conn, proxy, net.JoinHostPort(host, port))
	if !stop() && err == nil {
		err = context.Cause(ctx) // the deadline may have been set on the connection
	}
	if err != nil {
		_ = conn.Close() // nothing was sent on it
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("the proxy: %w", err)
	}
	if len(early) == 0 {
		return conn, nil
	}
	return &begun{conn, io.MultiReader(bytes.NewReader(early), conn)}, nil
}

// connect sends a CONNECT to the proxy. It returns the bytes of the other end that were read with the proxy's
// answer.
func connect(conn net.Conn, proxy *url.URL, to string) (early []byte, err error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{}}
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		request.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := request.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(io.LimitReader(conn, mostOfAnswer))
	answer, err := http.ReadResponse(reader, request)
	if err != nil {
		return nil, errors.New("its answer is no HTTP") // the parser's error may quote the answer
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it refuses the connection with HTTP %d", answer.StatusCode)
	}
	return reader.Peek(reader.Buffered())
}

// begun is a connection whose first bytes were read with the proxy's answer.
type begun struct {
	net.Conn
	reader io.Reader
}

func (b *begun) Read(into []byte) (int, error) { return b.reader.Read(into) }
