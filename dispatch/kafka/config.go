package kafka

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/blocks"
)

// Settings is the provider's `kafka` block.
type Settings struct {
	Brokers  []string `yaml:"brokers" jsonschema:"required,minItems=1" jsonschema_description:"Some of the cluster's brokers, host:port. The others are learned from them."`
	TLS      bool     `yaml:"tls,omitempty" jsonschema_description:"Speak TLS to every broker, with the provider's tls settings."`
	SASL     *SASL    `yaml:"sasl,omitempty" jsonschema_description:"How to log in; without it nobody does."`
	ClientID string   `yaml:"client_id,omitempty" jsonschema:"default=drainer" jsonschema_description:"The name that the brokers see in their logs and quotas."`
}

// SASL is a login.
type SASL struct {
	Mechanism string `yaml:"mechanism" jsonschema:"required,enum=plain,enum=scram-sha-256,enum=scram-sha-512" jsonschema_description:"plain shows the password to whoever reads the connection: set tls with it."`
	Username  string `yaml:"username" jsonschema:"required"`
	Password  string `yaml:"password" jsonschema:"required"`
}

func readSettings(block dispatch.Block) (settings Settings, err error) {
	if err := blocks.Decode(block, &settings); err != nil {
		return settings, err
	}
	return settings, settings.check()
}

func (s Settings) check() error {
	var problems []error
	if len(s.Brokers) == 0 {
		problems = append(problems, errors.New("brokers is missing"))
	}
	for i, broker := range s.Brokers {
		if !isAddress(broker) {
			problems = append(problems, fmt.Errorf("brokers[%d] is not host:port", i))
		}
	}
	if s.SASL != nil {
		_, err := s.SASL.mechanism()
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return err == nil && number > 0
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Username == "" || s.Password == "" {
		return nil, errors.New("sasl needs a username and a password")
	}
	switch s.Mechanism {
	case "plain":
		return plain.Auth{User: s.Username, Pass: s.Password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: s.Username, Pass: s.Password}.AsSha512Mechanism(), nil
	}
	return nil, errors.New("sasl.mechanism is none of plain, scram-sha-256 and scram-sha-512")
}
