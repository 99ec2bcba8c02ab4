package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
)

// Settings is the provider's `postgres` block.
type Settings struct {
	URL string `yaml:"url" jsonschema:"required" jsonschema_description:"The recipient's database, with user and password: postgres://drainer:secret@db.example.com/shop. TLS with a verified certificate unless sslmode=disable."`
}

// Tool is a tool's `postgres` block: one of the two.
type Tool struct {
	Inbox    string `yaml:"inbox,omitempty" jsonschema_description:"The table, as schema.table, that gets one row for each intent."`
	Function string `yaml:"function,omitempty" jsonschema_description:"The function, as schema.name, that is called in a transaction."`
}

func newTool(spec dispatch.ToolSpec) (tool, error) {
	var block Tool
	if err := adapter.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	if (block.Inbox == "") == (block.Function == "") {
		return nil, errors.New("set one of inbox and function")
	}
	if block.Function != "" {
		return newCall(block.Function, spec.Class)
	}
	if spec.Class == dispatch.ReadOnly || spec.AnswersLookups {
		return nil, errors.New("an inbox is written to; what reads or answers lookups is a function")
	}
	return newInbox(block.Inbox)
}

var qualifiedName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_$]{0,62})\.([A-Za-z_][A-Za-z0-9_$]{0,62})$`)

// quote makes SQL of a name that the configuration gives. Upper case counts.
func quote(field, name string) (string, error) {
	parts := qualifiedName.FindStringSubmatch(name)
	if parts == nil {
		return "", fmt.Errorf("%s: write schema.name, of letters, digits and underscores", field)
	}
	return pgx.Identifier(parts[1:]).Sanitize(), nil
}

// maxMessage bounds what the server may say at once, in bytes.
const maxMessage = 4 << 20

// neutral takes from the daemon's environment and home folder what would
// otherwise be added to the URL: they may hold the secrets of another database.
const neutral = "sslmode=disable&sslrootcert=&sslcert=&sslkey=&sslcertmode=allow&sslnegotiation=&passfile="

func newPoolConfig(spec dispatch.Spec) (*pgxpool.Config, error) {
	var settings Settings
	if err := adapter.Decode(spec.Settings, &settings); err != nil {
		return nil, err
	}
	address, err := parseAddress(settings.URL)
	if err != nil {
		return nil, fmt.Errorf("url %w", err)
	}
	config, err := pgxpool.ParseConfig(address.neutralised(settings.URL))
	if err != nil {
		return nil, errors.New("url: an option in it is unknown or has no such value") // the parser's error would repeat it
	}
	if !address.hasPassword {
		config.ConnConfig.Password = ""
	}
	if !address.limitsPool {
		config.MaxConns = math.MaxInt32 // the provider's concurrency is the limit
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = spec.Timeout // the pool goes on connecting after the last dispatch has given up
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "drainer"
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // what the driver writes, whatever the server prefers
	config.ConnConfig.MaxProtocolMessageBodyLen = maxMessage
	connectThrough(spec.Network, &config.ConnConfig.Config, address.secure)
	return config, nil
}

// connectThrough leaves the resolving of names to the network's dialer, which
// checks what they stand for.
func connectThrough(network dispatch.Network, config *pgconn.Config, secure bool) {
	config.DialFunc = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		conn, err := network.DialContext(ctx, protocol, address)
		if err != nil {
			return nil, err
		}
		return namedConn{conn, namedAddr{conn.RemoteAddr().Network(), address}}, nil
	}
	config.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	if !secure {
		return
	}
	config.TLSConfig = tlsFor(network, config.Host)
	for _, next := range config.Fallbacks {
		next.TLSConfig = tlsFor(network, next.Host)
	}
}

func tlsFor(network dispatch.Network, host string) *tls.Config {
	config := network.TLSConfig()
	if config.ServerName == "" {
		config.ServerName = host
	}
	return config
}

// namedConn says that it leads to a name. The driver connects there once more
// when it wants a statement cancelled, and rules that allow the name may not
// allow what it stands for.
type namedConn struct {
	net.Conn
	remote net.Addr
}

func (c namedConn) RemoteAddr() net.Addr { return c.remote }

type namedAddr struct{ network, text string }

func (a namedAddr) Network() string { return a.network }
func (a namedAddr) String() string  { return a.text }

// address holds the parts of a URL that the driver does not read.
type address struct {
	hasPassword bool
	hasPort     bool
	limitsPool  bool
	secure      bool
}

// parseAddress wants all in the URL that the driver would take from elsewhere.
// The list of hosts that Postgres allows keeps net/url from reading it.
func parseAddress(text string) (address, error) {
	rest, ok := strings.CutPrefix(text, "postgres://")
	if !ok {
		rest, ok = strings.CutPrefix(text, "postgresql://")
	}
	if !ok {
		return address{}, errors.New("is missing, or does not begin with postgres://")
	}
	credentials, rest, ok := strings.Cut(rest, "@")
	if !ok || strings.Contains(credentials, "/") {
		return address{}, errors.New("names no user")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest, "/")
	user, password, _ := strings.Cut(credentials, ":")
	options, err := url.ParseQuery(query)
	switch {
	case err != nil:
		return address{}, errors.New("has options that are not written name=value&name=value")
	case user == "" || options.Has("user"):
		return address{}, errors.New("names no user before its @")
	case strings.HasPrefix(options.Get("host"), "/"), strings.HasPrefix(hosts, "%"):
		return address{}, errors.New("names a socket; connect over TCP")
	case hosts == "" || options.Has("host"):
		return address{}, errors.New("names no host after its @")
	case database == "":
		return address{}, errors.New("names no database")
	}
	secure, err := wantsTLS(options)
	return address{
		hasPassword: password != "" || options.Has("password"),
		hasPort:     strings.Contains(hosts[strings.LastIndex(hosts, "]")+1:], ":") || options.Has("port"),
		limitsPool:  options.Has("pool_max_conns"),
		secure:      secure,
	}, err
}

// wantsTLS reads sslmode. The modes between would give the password to any
// server that answers.
func wantsTLS(options url.Values) (bool, error) {
	for option := range options {
		if option != "sslmode" && (strings.HasPrefix(option, "ssl") || strings.HasPrefix(option, "service") || option == "passfile") {
			return false, errors.New("has options that name files; certificates go into the provider's tls block")
		}
	}
	switch mode := options["sslmode"]; {
	case len(mode) == 0, len(mode) == 1 && mode[0] == "verify-full":
		return true, nil
	case len(mode) == 1 && mode[0] == "disable":
		return false, nil
	}
	return false, errors.New("has an sslmode that is neither verify-full, the default, nor disable")
}

func (a address) neutralised(text string) string {
	separator := "?"
	if strings.Contains(text, "?") {
		separator = "&"
	}
	text += separator + neutral
	if !a.hasPort {
		text += "&port=5432"
	}
	return text
}
