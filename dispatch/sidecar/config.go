package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// Settings is the provider's `sidecar` block.
type Settings struct {
	URL        string `yaml:"url" jsonschema:"required" jsonschema_description:"unix:///run/tickets.sock, or a loopback address: http://127.0.0.1:8090."`
	Token      string `yaml:"token,omitempty" jsonschema_description:"Sent as Authorization: Bearer with every request, from a ${file:} or an ${env:}."`
	User       *int   `yaml:"user,omitempty" jsonschema:"minimum=0" jsonschema_description:"The id of the user that owns the socket and listens on it. Default: root, drainer's own user, or the owner of the socket's folder. Only Linux checks it."`
	MaxMessage int    `yaml:"max_message,omitempty" jsonschema:"minimum=1024,default=1048576" jsonschema_description:"The longest answer, in bytes."`
}

// Tool is a tool's `sidecar` block, which has no settings. The sidecar needs only the operation's name.
type Tool struct{}

func newSettings(spec dispatch.Spec) (Settings, address, error) {
	var settings Settings
	problems := protocol.Configure(spec, &settings)
	address, err := parseAddress(settings.URL)
	problems = append(problems, err, protocol.CheckMaxMessage(&settings.MaxMessage))
	if strings.ContainsFunc(settings.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		problems = append(problems, errors.New("token holds a space, a control character or one beyond ASCII (a trailing newline in a secret file?)"))
	}
	if settings.User != nil && *settings.User < 0 {
		problems = append(problems, errors.New("user is under 0"))
	}
	return settings, address, errors.Join(problems...)
}

func (s *Settings) header() http.Header {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {"drainer"}}
	if s.Token != "" {
		header.Set("Authorization", "Bearer "+s.Token)
	}
	return header
}

// address is where a sidecar listens. It must be on this machine: the connection is plain text, and only the token
// protects it.
type address struct {
	base   string // of the URLs of requests
	socket string // the path of a Unix socket; empty for TCP
}

func parseAddress(text string) (address, error) {
	if text == "" {
		return address{}, errors.New("url is missing")
	}
	parsed, err := url.Parse(text)
	switch {
	case err != nil:
		return address{}, errors.New("url is not a URL") // the parser's error would repeat it
	case parsed.User != nil:
		return address{}, errors.New("url carries credentials; use token")
	case parsed.RawQuery != "" || parsed.ForceQuery || strings.Contains(text, "#"):
		return address{}, errors.New("url has a query or a fragment")
	case parsed.Scheme == "unix":
		return socketAddress(parsed)
	case parsed.Scheme == "http":
		return loopbackAddress(parsed)
	}
	return address{}, errors.New("url is neither unix nor http")
}

func socketAddress(parsed *url.URL) (address, error) {
	if parsed.Host != "" || len(parsed.Path) < 2 {
		return address{}, errors.New("url: a socket is unix:// and an absolute path, three slashes in all")
	}
	return address{base: "http://sidecar", socket: parsed.Path}, nil
}

func loopbackAddress(parsed *url.URL) (address, error) {
	host := parsed.Hostname()
	switch {
	case host != "localhost" && !net.ParseIP(host).IsLoopback():
		return address{}, errors.New("url: a sidecar is on this machine: 127.0.0.1, [::1] or localhost")
	case parsed.Path != "" && parsed.Path != "/":
		return address{}, errors.New("url has a path")
	}
	return address{base: "http://" + parsed.Host}, nil
}

// network returns a network that connects only to the address.
func (a address) network(out dispatch.Network, user *int) dispatch.Network {
	if a.socket == "" {
		return dispatch.NewNetwork(stayingHome(out), nil)
	}
	return dispatch.NewNetwork(func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dispatch.PlainDialer().DialContext(ctx, "unix", a.socket)
		if err != nil {
			return nil, err
		}
		if err := checkSocket(conn, a.socket, user); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}, nil)
}

var errAway = errors.New("localhost is not on this machine")

// stayingHome refuses a connection that a name has led away from this machine.
func stayingHome(out dispatch.Network) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := out.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if peer, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !peer.IP.IsLoopback() {
			_ = conn.Close()
			return nil, fmt.Errorf("connecting to the sidecar: %w", errAway)
		}
		return conn, nil
	}
}
