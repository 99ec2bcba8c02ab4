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

// Tool is a tool's `postgres` block. Exactly one of its fields is set.
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

// quote turns a name of the configuration into an SQL identifier. The name is case-sensitive.
func quote(field, name string) (string, error) {
	parts := qualifiedName.FindStringSubmatch(name)
	if parts == nil {
		return "", fmt.Errorf("%s: write schema.name, of letters, digits and underscores", field)
	}
	return pgx.Identifier(parts[1:]).Sanitize(), nil
}

// maxMessage is the longest message of the server that is read, in bytes.
const maxMessage = 4 << 20

// neutral prevents the driver from adding settings from the daemon's environment and home directory to the URL. They
// may contain the secrets of another database.
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
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // the driver writes UTF-8, whatever the server's default is
	config.ConnConfig.MaxProtocolMessageBodyLen = maxMessage
	connectThrough(spec.Network, &config.ConnConfig.Config, address.secure)
	return config, nil
}

// connectThrough uses the network's dialer, which resolves names itself because it checks the resolved addresses.
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

// namedConn reports the name that was dialed as its remote address. To cancel a statement, the driver connects to
// that address once more, and egress rules that allow the name may not allow the resolved address.
type namedConn struct {
	net.Conn
	remote net.Addr
}

func (c namedConn) RemoteAddr() net.Addr { return c.remote }

type namedAddr struct{ network, text string }

func (a namedAddr) Network() string { return a.network }
func (a namedAddr) String() string  { return a.text }

// address holds facts about a URL that the driver does not report.
type address struct {
	hasPassword bool
	hasPort     bool
	limitsPool  bool
	secure      bool
}

// parseAddress demands that the URL contains everything that the driver would otherwise take from elsewhere. net/url
// cannot parse the list of hosts that Postgres allows.
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

// wantsTLS reads sslmode. It refuses all modes but two: with the other modes, any server that answers could get the
// password.
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
