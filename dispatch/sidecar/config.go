package sidecar

import (
	"errors"
	"net/http"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
)

// Settings is the provider's `sidecar` block.
type Settings struct {
	URL        string `yaml:"url" jsonschema:"required" jsonschema_description:"Where the sidecar listens: unix:///run/tickets.sock, or http on a loopback address: http://127.0.0.1:8090."`
	Token      string `yaml:"token,omitempty" jsonschema_description:"Sent as Authorization: Bearer with every request, so that the sidecar can tell drainer from others on the machine. From a ${file:} or an ${env:}."`
	MaxMessage int    `yaml:"max_message,omitempty" jsonschema:"minimum=1024,default=1048576" jsonschema_description:"The longest answer that is read, in octets."`
}

// Tool is a tool's block: there is nothing to say in it. The operation's name
// is all that the sidecar needs.
type Tool struct{}

func newSettings(spec dispatch.Spec) (Settings, address, error) {
	var settings Settings
	problems := []error{blocks.Decode(spec.Settings, &settings)}
	address, err := parseAddress(settings.URL)
	problems = append(problems, err, settings.complete())
	for operation, tool := range spec.Tools {
		if err := blocks.Decode(tool.Settings, &Tool{}); err != nil {
			problems = append(problems, &dispatch.ToolError{Operation: operation, Err: err})
		}
	}
	return settings, address, errors.Join(problems...)
}

// complete checks the settings and fills in what was left out.
func (s *Settings) complete() error {
	var problems []error
	if strings.ContainsFunc(s.Token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		problems = append(problems, errors.New("token holds a space, a control character or one beyond ASCII (a trailing newline in a secret file?)"))
	}
	if s.MaxMessage == 0 {
		s.MaxMessage = protocol.DefaultMaxMessage
	}
	if s.MaxMessage < 1024 {
		problems = append(problems, errors.New("max_message is under 1024 octets"))
	}
	return errors.Join(problems...)
}

func (s *Settings) header() http.Header {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {"drainer"}}
	if s.Token != "" {
		header.Set("Authorization", "Bearer "+s.Token)
	}
	return header
}
