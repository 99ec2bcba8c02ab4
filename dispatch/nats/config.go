package nats

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

// Settings is the provider's `nats` block. At most one way to log in is set.
type Settings struct {
	URLs        []string `yaml:"urls" jsonschema:"required,minItems=1" jsonschema_description:"The servers, nats://host:4222 or tls://host:4222, without credentials. Only these are connected to, never those that a server tells of."`
	TLS         bool     `yaml:"tls,omitempty" jsonschema_description:"Insist on TLS, with the provider's tls settings. Without it TLS is spoken where the server wants it."`
	Username    string   `yaml:"username,omitempty"`
	Password    string   `yaml:"password,omitempty"`
	Token       string   `yaml:"token,omitempty"`
	NkeySeed    string   `yaml:"nkey_seed,omitempty" jsonschema_description:"The seed of a user's nkey, SU...: ${file:/run/secrets/nats.nk}."`
	Credentials string   `yaml:"credentials,omitempty" jsonschema_description:"What stands in a .creds file: ${file:/run/secrets/nats.creds}."`
	Domain      string   `yaml:"domain,omitempty" jsonschema_description:"The JetStream domain, where the streams are in another than the server's own."`
	InboxPrefix string   `yaml:"inbox_prefix,omitempty" jsonschema:"default=_INBOX" jsonschema_description:"Where acknowledgements come to: what the user may subscribe to."`
}

func readSettings(block dispatch.Block) (settings Settings, err error) {
	if err := blocks.Decode(block, &settings); err != nil {
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

// login is what the server wants to know, nil where it asks for nothing.
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
