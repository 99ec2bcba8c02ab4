package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/adapter"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// Settings is the provider's `nats` block. At most one kind of login is set.
type Settings struct {
	URLs        []string `yaml:"urls" jsonschema:"required,minItems=1" jsonschema_description:"nats://host:4222 or tls://host:4222, without credentials. drainer connects only to these servers."`
	TLS         bool     `yaml:"tls,omitempty" jsonschema_description:"Insist on TLS, with the provider's tls settings. Default: TLS if the server wants it."`
	Username    string   `yaml:"username,omitempty"`
	Password    string   `yaml:"password,omitempty"`
	Token       string   `yaml:"token,omitempty"`
	NkeySeed    string   `yaml:"nkey_seed,omitempty" jsonschema_description:"The seed of a user's nkey, SU...: ${file:/run/secrets/nats.nk}."`
	Credentials string   `yaml:"credentials,omitempty" jsonschema_description:"The content of a .creds file: ${file:/run/secrets/nats.creds}."`
	Domain      string   `yaml:"domain,omitempty" jsonschema_description:"The JetStream domain of the streams, if it is not the server's."`
	InboxPrefix string   `yaml:"inbox_prefix,omitempty" jsonschema:"default=_INBOX" jsonschema_description:"Where acknowledgements arrive. The user must be allowed to subscribe there."`
}

func readSettings(block dispatch.Block) (settings Settings, err error) {
	if err := adapter.Decode(block, &settings); err != nil {
		return settings, err
	}
	return settings, settings.check()
}

func (s Settings) check() error {
	var problems []error
	if len(s.URLs) == 0 {
		problems = append(problems, errors.New("urls is missing"))
	}
	for i, text := range s.URLs {
		if err := checkURL(text); err != nil {
			problems = append(problems, fmt.Errorf("urls[%d] %w", i, err))
		}
	}
	if s.InboxPrefix != "" && !isLiteralSubject(s.InboxPrefix) {
		problems = append(problems, errors.New("inbox_prefix is not a subject without wildcards"))
	}
	_, err := s.login()
	return errors.Join(append(problems, err)...)
}

func checkURL(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("is not a URL") // the parser's error would repeat it
	case parsed.Scheme != "nats" && parsed.Scheme != "tls":
		return errors.New("is neither nats:// nor tls://")
	case parsed.Hostname() == "":
		return errors.New("has no host")
	case parsed.User != nil:
		return errors.New("carries credentials; put them into username and password, or token")
	}
	return nil
}

// login returns the credentials for the server, or nil if none are configured.
func (s Settings) login() (nats.Option, error) {
	switch s.ways() {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, errors.New("set one of username, token, nkey_seed and credentials")
	}
	switch {
	case s.Token != "":
		return nats.Token(s.Token), nil
	case s.NkeySeed != "":
		return nkeyLogin(s.NkeySeed)
	case s.Credentials != "":
		return credentialsLogin(s.Credentials)
	case s.Username == "":
		return nil, errors.New("there is a password, but no username")
	}
	return nats.UserInfo(s.Username, s.Password), nil
}

func (s Settings) ways() (count int) {
	for _, way := range []string{s.Username + s.Password, s.Token, s.NkeySeed, s.Credentials} {
		if way != "" {
			count++
		}
	}
	return count
}

func nkeyLogin(seed string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return nil, errors.New("nkey_seed is not a seed (a trailing newline in a secret file?)")
	}
	public, err := pair.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return nil, errors.New("nkey_seed is not that of a user")
	}
	return nats.Nkey(public, pair.Sign), nil
}

func credentialsLogin(contents string) (nats.Option, error) {
	if _, err := nkeys.ParseDecoratedJWT([]byte(contents)); err != nil {
		return nil, errors.New("credentials hold no user JWT")
	}
	if _, err := nkeys.ParseDecoratedUserNKey([]byte(contents)); err != nil {
		return nil, errors.New("credentials hold no user seed")
	}
	return nats.UserCredentialBytes([]byte(contents)), nil
}

// Tool is a tool's `nats` block.
type Tool struct {
	Subject string            `yaml:"subject" jsonschema:"required" jsonschema_description:"The subject, without wildcards. A stream must listen on it. No payload changes it."`
	Stream  string            `yaml:"stream,omitempty" jsonschema_description:"The only stream that may take the message. Default: any stream that listens."`
	Headers map[string]string `yaml:"headers,omitempty" jsonschema_description:"Message headers, beside Nats-Msg-Id and the trace context; {jq} inserts a value."`
	Map     string            `yaml:"map,omitempty" jsonschema_description:"A jq expression that makes the message, over the intent. Default: the payload, byte for byte. null makes an empty message."`
}

// tool is Tool, checked and compiled.
type tool struct {
	subject string
	stream  string // "" for any stream that listens
	form    *adapter.Form
	class   dispatch.Class
	keyTTL  time.Duration
}

func newTool(spec dispatch.ToolSpec) (*tool, error) {
	var block Tool
	if err := adapter.Decode(spec.Settings, &block); err != nil {
		return nil, err
	}
	var problems []error
	if spec.AnswersLookups {
		problems = append(problems, errors.New("this tool answers lookups, but a subject cannot be asked for a message"))
	}
	switch {
	case block.Subject == "":
		problems = append(problems, errors.New("subject is missing"))
	case !isLiteralSubject(block.Subject):
		problems = append(problems, errors.New("subject is not a subject without wildcards"))
	}
	if strings.ContainsAny(block.Stream, ".*> \t\r\n/\\") {
		problems = append(problems, errors.New("stream is not the name of a stream"))
	}
	form, err := adapter.CompileForm(block.Headers, block.Map, jetstream.MsgIDHeader, jetstream.ExpectedStreamHeader)
	tool := &tool{subject: block.Subject, stream: block.Stream, form: form, class: spec.Class, keyTTL: spec.KeyTTL}
	return tool, errors.Join(append(problems, err)...)
}

// isLiteralSubject accepts the subjects that every server accepts: tokens of printable ASCII, separated by dots,
// without wildcards.
func isLiteralSubject(subject string) bool {
	for _, token := range strings.Split(subject, ".") {
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }) {
			return false
		}
	}
	return true
}

func (t *tool) message(ctx context.Context, request dispatch.Request) (*nats.Msg, error) {
	input, err := render.Input(request)
	if err != nil {
		return nil, err
	}
	written, err := t.form.Write(ctx, request, input)
	if err != nil {
		return nil, err
	}
	rendered := nats.NewMsg(t.subject)
	rendered.Data = written.Body
	for _, header := range written.Headers {
		rendered.Header.Set(header.Name, header.Value)
	}
	rendered.Header.Set(jetstream.MsgIDHeader, request.IdempotencyKey)
	if t.stream != "" {
		rendered.Header.Set(jetstream.ExpectedStreamHeader, t.stream)
	}
	return rendered, nil
}
