package smtp

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/mail"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Settings is the provider's `smtp` block.
type Settings struct {
	Server   string `yaml:"server" jsonschema:"required" jsonschema_description:"host:port. 587 is for starttls, 465 for tls, 25 between servers."`
	Security string `yaml:"security,omitempty" jsonschema:"enum=starttls,enum=tls,enum=none,default=starttls" jsonschema_description:"starttls: encrypted before the login, else nothing is sent. tls: encrypted from the first byte. none: plain text."`
	Auth     *Auth  `yaml:"auth,omitempty" jsonschema_description:"The login. Without encryption only on this machine."`
	From     string `yaml:"from,omitempty" jsonschema_description:"The sender of tools without their own: billing@example.com, or Billing <billing@example.com>."`
	Hello    string `yaml:"hello,omitempty" jsonschema_description:"The name of the client for the server. Default: this machine's."`
}

// Auth defines the login.
type Auth struct {
	Method   string `yaml:"method,omitempty" jsonschema:"enum=plain,enum=login,default=plain"`
	User     string `yaml:"user" jsonschema:"required"`
	Password string `yaml:"password" jsonschema:"required"`
}

// Tool is a tool's `smtp` block.
type Tool struct {
	From            string            `yaml:"from,omitempty" jsonschema_description:"The sender. No payload changes it."`
	To              []string          `yaml:"to,omitempty" jsonschema_description:"Recipients; {jq} inserts a value. Each entry gives one address or none. One {jq} alone may give a list."`
	CC              []string          `yaml:"cc,omitempty" jsonschema_description:"Recipients, like to."`
	BCC             []string          `yaml:"bcc,omitempty" jsonschema_description:"Hidden recipients, like to."`
	ReplyTo         []string          `yaml:"reply_to,omitempty" jsonschema_description:"Addresses for answers, like to."`
	AllowRecipients []string          `yaml:"allow_recipients,omitempty" jsonschema_description:"The only allowed recipients: addresses, or @example.com for a domain without its subdomains. Other mail is rejected, unsent."`
	Subject         string            `yaml:"subject,omitempty" jsonschema_description:"The subject; {jq} inserts a value."`
	Text            string            `yaml:"text,omitempty" jsonschema_description:"The mail as plain text; {jq} inserts a value."`
	HTML            string            `yaml:"html,omitempty" jsonschema_description:"The mail as HTML; {jq} inserts a value, escaped. One {jq} alone gives the whole document, unescaped."`
	Headers         map[string]string `yaml:"headers,omitempty" jsonschema_description:"Further headers; {jq} inserts a value."`
}

const (
	securitySTARTTLS = "starttls"
	securityTLS      = "tls"
	securityNone     = "none"

	authPlain = "plain"
	authLogin = "login"
)

// newRelay also returns the sender of tools that have none of their own, which may be nil.
func newRelay(spec dispatch.Spec) (*relay, *mail.Address, error) {
	var settings Settings
	if err := adapter.Decode(spec.Settings, &settings); err != nil {
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

// checkServer checks the address. Its errors never repeat the text, which may contain a password by mistake.
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
		problems = append(problems, errors.New("auth: with security: none, the password could be read on its way"))
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

// parseSender returns nil for an empty text.
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

var (
	errAddress    = errors.New("not one plain address")
	errNotAllowed = errors.New("the address is not among allow_recipients")

	domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

	// localPart allows no quotes, which could hide the end of a command, and no ! or %, which very old servers take
	// for a route to another host.
	localPart = regexp.MustCompile("^[A-Za-z0-9#$&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9#$&'*+/=?^_`{|}~-]+)*$")
)

const (
	maxLocalPart = 64  // RFC 5321, 4.5.3.1.1
	maxDomain    = 255 // RFC 5321, 4.5.3.1.2
)

// parseAddress parses one address, with or without a name. The address can be written into a command unchanged.
func parseAddress(text string) (*mail.Address, error) {
	address, err := mail.ParseAddress(text)
	if err != nil {
		return nil, errAddress // the parser's error would repeat it
	}
	local, domain := split(address.Address)
	switch {
	case len(local) > maxLocalPart || len(domain) > maxDomain,
		!localPart.MatchString(local) || !domainName.MatchString(domain):
		return nil, errAddress
	}
	return address, nil
}

func split(address string) (local, domain string) {
	at := strings.LastIndexByte(address, '@')
	return address[:max(at, 0)], address[at+1:]
}

// allowed lists the recipients of a tool; nil allows all. An entry is an address, or @ and a domain, in lower case.
type allowed []string

func parseAllowed(entries []string) (allowed, error) {
	if entries != nil && len(entries) == 0 {
		return nil, errors.New("allow_recipients is empty, which would allow no recipient; leave it out to allow all")
	}
	var parsed allowed
	for _, entry := range entries {
		local, domain := split(entry)
		if !domainName.MatchString(domain) || !strings.Contains(entry, "@") || local != "" && !localPart.MatchString(local) || strings.Contains(local, "*") {
			return nil, errors.New("allow_recipients: an entry is neither @ and a domain nor an address")
		}
		parsed = append(parsed, strings.ToLower(entry))
	}
	return parsed, nil
}

func (a allowed) allows(address string) bool {
	if a == nil {
		return true
	}
	address = strings.ToLower(address)
	_, domain := split(address)
	for _, entry := range a {
		if entry == address || entry == "@"+domain {
			return true
		}
	}
	return false
}

// tool is Tool, checked and compiled.
type tool struct {
	from        *mail.Address
	to, cc, bcc addressees
	replyTo     addressees
	allowed     allowed
	subject     render.Template // nil for none
	text, html  render.Template // nil if the mail has no such part
	headers     map[string]render.Template
	headerNames []string // in the order in which they are written
}

func newTool(block dispatch.Block, from *mail.Address) (*tool, error) {
	var settings Tool
	if err := adapter.Decode(block, &settings); err != nil {
		return nil, err
	}
	t := &tool{from: from}
	return t, errors.Join(
		t.compileSender(settings.From),
		t.compileRecipients(settings),
		t.compileContent(settings),
		t.compileHeaders(settings.Headers),
	)
}

func (t *tool) compileSender(text string) error {
	sender, err := parseSender(text)
	if sender != nil {
		t.from = sender
	}
	if err == nil && t.from == nil {
		return errors.New("from is missing, here and in the provider's settings")
	}
	return err
}

func (t *tool) compileRecipients(settings Tool) error {
	var problems []error
	compile := func(field string, texts []string) addressees {
		parsed, err := parseAddressees(field, texts)
		problems = append(problems, err)
		return parsed
	}
	t.to = compile("to", settings.To)
	t.cc = compile("cc", settings.CC)
	t.bcc = compile("bcc", settings.BCC)
	t.replyTo = compile("reply_to", settings.ReplyTo)
	if len(settings.To)+len(settings.CC)+len(settings.BCC) == 0 {
		problems = append(problems, errors.New("to, cc and bcc are all missing"))
	}
	var err error
	t.allowed, err = parseAllowed(settings.AllowRecipients)
	return errors.Join(append(problems, err)...)
}

func (t *tool) compileContent(settings Tool) error {
	if settings.Text == "" && settings.HTML == "" {
		return errors.New("text and html are both missing")
	}
	var problems []error
	compile := func(field, text string) render.Template {
		if text == "" {
			return nil
		}
		template, err := render.ParseTemplate(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
		return template
	}
	t.subject = compile("subject", settings.Subject)
	t.text = compile("text", settings.Text)
	t.html = compile("html", settings.HTML)
	return errors.Join(problems...)
}

func (t *tool) compileHeaders(texts map[string]string) error {
	var problems []error
	t.headers = make(map[string]render.Template, len(texts))
	t.headerNames = slices.Sorted(maps.Keys(texts))
	for _, name := range t.headerNames {
		template, err := render.ParseTemplate(texts[name])
		if err != nil {
			problems = append(problems, fmt.Errorf("headers.%s: %w", name, err))
		}
		problems = append(problems, checkHeaderName(name))
		t.headers[name] = template
	}
	return errors.Join(problems...)
}
