package integration_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/agentoutbox/drainer/dispatch"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainer"
)

const setupVariable = "DRAINER_INTEGRATION_DAEMON"

// setup is what a daemon process is told by the test that starts it.
type setup struct {
	DatabaseURL string
	Providers   []providerSetup
	Worker      drainer.WorkerSettings
	PauseAt     pausePoint
}

// providerSetup is one HTTP provider with the single operation "act".
type providerSetup struct {
	Name        string
	BaseURL     string
	Class       dispatch.Class
	Concurrency int
	MaxAttempts int
	Timeout     time.Duration
	KeyTTL      time.Duration // 24 h if zero
	Breaker     dispatch.BreakerPolicy
}

// Short leases where losing one is the subject, though not so short that daemons
// who share a busy machine lose theirs unasked; patient ones where none must be lost.
var (
	shortLease   = drainer.WorkerSettings{Heartbeat: 200 * time.Millisecond, Lease: 3 * time.Second, ShutdownTimeout: 10 * time.Second}
	patientLease = drainer.WorkerSettings{Heartbeat: time.Second, Lease: 15 * time.Second, ShutdownTimeout: 10 * time.Second}
)

func (s setup) encode() (string, error) {
	encoded, err := json.Marshal(s)
	return string(encoded), err
}

func decodeSetup(encoded string) (s setup, err error) {
	err = json.Unmarshal([]byte(encoded), &s)
	return s, err
}

// build makes the provider as the configuration would.
func (p providerSetup) build(decorate func(dispatch.Adapter) dispatch.Adapter) (drainer.Provider, error) {
	adapter, err := dispatchhttp.New(dispatch.Spec{
		Provider: p.Name,
		Timeout:  p.Timeout,
		Settings: block("base_url: " + p.BaseURL),
		Tools:    map[string]dispatch.ToolSpec{"act": {Class: p.Class, Settings: block("{method: POST, path: /v1/act, response: {ref: .id}}")}},
	})
	if err != nil {
		return drainer.Provider{}, fmt.Errorf("provider %s: %w", p.Name, err)
	}
	policy := quickPolicy(p.Class, p.MaxAttempts)
	policy.KeyTTL = cmp.Or(p.KeyTTL, policy.KeyTTL)
	return drainer.Provider{
		Name:        p.Name,
		Adapter:     decorate(adapter),
		Concurrency: p.Concurrency,
		Timeout:     p.Timeout,
		Breaker:     p.Breaker,
		Tools:       map[string]dispatch.Policy{"act": policy},
	}, nil
}

// quickPolicy retries at once, so that no test waits for a backoff.
func quickPolicy(class dispatch.Class, maxAttempts int) dispatch.Policy {
	return dispatch.Policy{
		Class:       class,
		KeyTTL:      24 * time.Hour,
		MaxAttempts: maxAttempts,
		Backoff:     dispatch.Backoff{Base: 5 * time.Millisecond, Cap: 50 * time.Millisecond},
	}
}

// block is configuration as a user writes it.
type block string

func (b block) Decode(into any) error {
	return yaml.UnmarshalWithOptions([]byte(b), into, yaml.Strict())
}
