package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

// address is where a sidecar listens. It is never beyond this machine: what
// passes is plain text, and the token is all that guards it.
type address struct {
	base   string // of the requests' URLs
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

// network connects to the address and to nothing else.
func (a address) network(out dispatch.Network) dispatch.Network {
	if a.socket == "" {
		return dispatch.NewNetwork(stayingHome(out), nil)
	}
	return dispatch.NewNetwork(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dispatch.PlainDialer().DialContext(ctx, "unix", a.socket)
	}, nil)
}

var errAway = errors.New("localhost is not on this machine")

// stayingHome sees where a name has led.
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
