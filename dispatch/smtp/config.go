package smtp

import (
	"cmp"
	"errors"
	"net"
	"net/mail"
	"os"
	"slices"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

// Settings is the provider's `smtp` block.
type Settings struct {
	Server   string `yaml:"server" jsonschema:"required" jsonschema_description:"host:port of the mail server. 587 is for starttls, 465 for tls, 25 is between servers."`
	Security string `yaml:"security,omitempty" jsonschema:"enum=starttls,enum=tls,enum=none,default=starttls" jsonschema_description:"starttls: nothing is said before the connection is encrypted, and a server that cannot is refused. tls: encrypted from the first octet. none: everybody between can read the mails."`
	Auth     *Auth  `yaml:"auth,omitempty" jsonschema_description:"Credentials. Without encryption only for a server on this machine."`
	From     string `yaml:"from,omitempty" jsonschema_description:"The sender where a tool has none: billing@example.com, or Billing <billing@example.com>."`
	Hello    string `yaml:"hello,omitempty" jsonschema_description:"The name that is given to the server; by default this machine's."`
}

// Auth is how to log in.
type Auth struct {
	Method   string `yaml:"method,omitempty" jsonschema:"enum=plain,enum=login,default=plain"`
	User     string `yaml:"user" jsonschema:"required"`
	Password string `yaml:"password" jsonschema:"required"`
}

// Tool is a tool's `smtp` block.
type Tool struct {
	From            string            `yaml:"from,omitempty" jsonschema_description:"The sender, as it stands."`
	To              []string          `yaml:"to,omitempty" jsonschema_description:"Recipients. {jq} inserts a value; each entry comes to one address, with or without a name, or to nothing. An entry that is one {jq} alone may also give a list of addresses."`
	CC              []string          `yaml:"cc,omitempty" jsonschema_description:"Recipients, like to."`
	BCC             []string          `yaml:"bcc,omitempty" jsonschema_description:"Recipients, like to, of whom the mail tells nobody."`
	ReplyTo         []string          `yaml:"reply_to,omitempty" jsonschema_description:"Whom answers go to, like to."`
	AllowRecipients []string          `yaml:"allow_recipients,omitempty" jsonschema_description:"The only recipients that are allowed: @example.com for all of a domain, or an address. A mail to anybody else is rejected unsent."`
	Subject         string            `yaml:"subject,omitempty" jsonschema_description:"The subject; {jq} inserts a value."`
	Text            string            `yaml:"text,omitempty" jsonschema_description:"The mail as plain text; {jq} inserts a value."`
	HTML            string            `yaml:"html,omitempty" jsonschema_description:"The mail as HTML; {jq} inserts a value, escaped. One {jq} alone gives the whole document, as it is. With text as well, the reader's program chooses."`
	Headers         map[string]string `yaml:"headers,omitempty" jsonschema_description:"Further headers; {jq} inserts a value."`
}

const (
	securitySTARTTLS = "starttls"
	securityTLS      = "tls"
	securityNone     = "none"

	authPlain = "plain"
	authLogin = "login"
)

// newRelay also gives the sender of tools that name none, which may be nil.
func newRelay(spec dispatch.Spec) (*relay, *mail.Address, error) {
	var settings Settings
	if err := blocks.Decode(spec.Settings, &settings); err != nil {
		return nil, nil, err
	}
	host, serverErr := checkServer(settings.Server)
	from, fromErr := parseSender(settings.From)
	r := &relay{
		network:  spec.Network,
		address:  settings.Server,
		host:     host,
		security: cmp.Or(settings.Security, securitySTARTTLS),
		auth:     settings.Auth,
		hello:    cmp.Or(settings.Hello, machineName()),
	}
	return r, from, errors.Join(serverErr, fromErr, r.checkSecurity(), r.checkHello())
}

// checkServer never repeats the server, in which somebody may have put more.
func checkServer(server string) (host string, err error) {
	if server == "" {
		return "", errors.New("server is missing")
	}
	host, port, err := net.SplitHostPort(server)
	if number, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || number == 0 || host == "" {
		return "", errors.New("server is not host:port")
	}
	return host, nil
}

func (r *relay) checkSecurity() error {
	var problems []error
	if !slices.Contains([]string{securitySTARTTLS, securityTLS, securityNone}, r.security) {
		problems = append(problems, errors.New("security is none of starttls, tls and none"))
	}
	if r.auth == nil {
		return errors.Join(problems...)
	}
	if !slices.Contains([]string{"", authPlain, authLogin}, r.auth.Method) {
		problems = append(problems, errors.New("auth.method is neither plain nor login"))
	}
	if r.auth.User == "" || r.auth.Password == "" {
		problems = append(problems, errors.New("auth: user or password is missing"))
	}
	if r.security == securityNone && !isLoopback(r.host) {
		problems = append(problems, errors.New("auth: with security: none, everybody between could read the password"))
	}
	return errors.Join(problems...)
}

func (r *relay) checkHello() error {
	if !domainName.MatchString(r.hello) {
		return errors.New("hello is not a host name")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func machineName() string {
	if name, err := os.Hostname(); err == nil && domainName.MatchString(name) {
		return name
	}
	return "localhost"
}

// parseSender takes nothing for nothing.
func parseSender(text string) (*mail.Address, error) {
	if text == "" {
		return nil, nil
	}
	sender, err := parseAddress(text)
	if err != nil {
		return nil, errors.New("from is not an address")
	}
	return sender, nil
}
