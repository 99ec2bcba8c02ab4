package config

import (
	"maps"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// Config is a valid configuration file with its defaults filled in, its
// secrets expanded and its adapters built.
type Config struct {
	DatabaseURL string // empty where the file leaves it to a flag or the environment
	Worker      Worker
	Server      Server
	Retention   Retention
	Providers   []Provider                  // in the order of the file
	Networks    map[string]dispatch.Network // the way out that each provider's adapter was given, by name
	Pages       []Page                      // in the order of the file
	PageRepeat  time.Duration               // between two pages about one incident
	Secrets     []string                    // what references brought in, in the order of the file; to be shown nowhere
	Files       []File                      // that it was read from, the configuration file first
}

// Worker is how one process proves that it lives and how it ends.
type Worker struct {
	Heartbeat       time.Duration // between two proofs of life
	Lease           time.Duration // without a heartbeat for this long, others declare the worker dead
	ShutdownTimeout time.Duration // what in-flight requests get to finish after SIGTERM
}

// Server is the HTTP listener of /metrics, /livez and /readyz.
type Server struct {
	Listen string // host:port; the host may be empty
}

// Retention is how long settled intents are kept. It is also how long their
// keys are recognised: what is enqueued again after that acts again.
type Retention struct {
	Default time.Duration
	Tools   map[string]time.Duration // of the tools that say otherwise, by full name
}

// Retentions is how long the intents of each tool in the file are kept, by full
// name.
func (c *Config) Retentions() map[string]time.Duration {
	kept := map[string]time.Duration{}
	for tool := range c.Tools() {
		kept[tool] = c.Retention.Default
	}
	maps.Copy(kept, c.Retention.Tools)
	return kept
}

// Provider is one upstream: an adapter, its limits and the policy of each of
// its tools by operation name.
type Provider struct {
	Name        string
	Adapter     dispatch.Adapter
	Concurrency int           // requests in flight at once, over all workers together
	Timeout     time.Duration // the longest one dispatch may take
	RateLimit   dispatch.RateLimit
	Breaker     dispatch.BreakerPolicy
	Fallback    string // a provider that serves while this one's breaker is open; empty for none
	Tools       map[string]dispatch.Policy
}

// Page is one channel that hears of incidents.
type Page struct {
	Name   string // unlike any other's
	Kind   PageKind
	URL    string // a secret, if the channel is Slack
	Secret string // PagerDuty's routing key, or what signs a webhook
}

// PageKind is a protocol of pagers.
type PageKind string

// The kinds, as the file names them.
const (
	PagerDuty    PageKind = "pagerduty"
	Slack        PageKind = "slack"
	Alertmanager PageKind = "alertmanager"
	Webhook      PageKind = "webhook"
)

// PageKinds lists them all.
func PageKinds() []PageKind { return []PageKind{PagerDuty, Slack, Alertmanager, Webhook} }
