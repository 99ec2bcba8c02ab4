package config

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// What follows is the file's shape, read by the decoder and published as a
// JSON Schema. Lists of named blocks are decoded one by one.

type rootBlock struct {
	Version    int           `yaml:"version" jsonschema:"required,enum=1" jsonschema_description:"Version of this file's format."`
	Database   databaseBlock `yaml:"database" jsonschema_description:"The Postgres database that holds the outbox."`
	Worker     workerBlock   `yaml:"worker" jsonschema_description:"How one drainer process proves that it lives and how it ends."`
	Server     serverBlock   `yaml:"server" jsonschema_description:"The HTTP listener of /metrics, /livez and /readyz."`
	Egress     egressBlock   `yaml:"egress" jsonschema_description:"Where connections to providers may go; a provider's own egress goes before it, field by field."`
	Retention  time.Duration `yaml:"retention" jsonschema:"default=90d" jsonschema_description:"How long settled intents are kept, unless a tool says otherwise. Until then their keys are recognised; an intent that is enqueued again after that acts again."`
	Providers  list          `yaml:"providers" jsonschema_description:"The upstreams by name: the part of a tool name before its first slash."`
	Pages      []pageBlock   `yaml:"pages" jsonschema_description:"Who is told of incidents: every channel of this list. With none, incidents are only listed and counted."`
	PageRepeat time.Duration `yaml:"page_repeat" jsonschema:"default=30m" jsonschema_description:"How often a channel is told again of an incident that nobody has acknowledged. Alertmanager is told every minute, and repeats by its own settings."`
}

type databaseBlock struct {
	URL    string `yaml:"url" jsonschema_description:"Connection URL, usually \"${env:DATABASE_URL}\". --database-url overrides it; left out, the DATABASE_URL environment variable is used."`
	Schema string `yaml:"schema" jsonschema:"enum=outbox,default=outbox" jsonschema_description:"Schema of the outbox; it is always outbox."`
}

type workerBlock struct {
	Heartbeat       time.Duration `yaml:"heartbeat" jsonschema:"default=3s" jsonschema_description:"Time between two proofs of life."`
	Lease           time.Duration `yaml:"lease" jsonschema:"default=15s" jsonschema_description:"Without a heartbeat for this long a worker is declared dead by the others; at two thirds of it the worker stops sending by itself. At least three times heartbeat."`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" jsonschema:"default=25s" jsonschema_description:"What in-flight requests get to finish after SIGTERM. Keep it under the time after which the supervisor kills."`
}

type serverBlock struct {
	Listen string `yaml:"listen" jsonschema:"default=:9464" jsonschema_description:"host:port to listen on; without a host, on every address."`
}

// pageBlock holds one channel.
type pageBlock struct {
	Name         string             `yaml:"name" jsonschema_description:"What metrics and logs call it; the channel's kind by default. Needed where two are of one kind."`
	PagerDuty    *pagerDutyBlock    `yaml:"pagerduty" jsonschema_description:"PagerDuty, through its Events API v2."`
	Slack        *slackBlock        `yaml:"slack" jsonschema_description:"A Slack incoming webhook."`
	Alertmanager *alertmanagerBlock `yaml:"alertmanager" jsonschema_description:"An Alertmanager, through its API v2. It knows no acknowledgement: the alert ends with it."`
	Webhook      *webhookBlock      `yaml:"webhook" jsonschema_description:"Any receiver of signed messages as Standard Webhooks specifies them."`
}

type pagerDutyBlock struct {
	RoutingKey string `yaml:"routing_key" jsonschema:"required" jsonschema_description:"Integration key of a service, such as ${file:/run/secrets/pagerduty}."`
	URL        string `yaml:"url" jsonschema:"default=https://events.pagerduty.com/v2/enqueue" jsonschema_description:"Where events go; https://events.eu.pagerduty.com/v2/enqueue for accounts in Europe."`
}

type slackBlock struct {
	WebhookURL string `yaml:"webhook_url" jsonschema:"required" jsonschema_description:"The webhook's URL. It is a secret, such as ${env:SLACK_WEBHOOK}."`
}

type alertmanagerBlock struct {
	URL string `yaml:"url" jsonschema:"required" jsonschema_description:"Its address, without /api/v2/alerts."`
}

type webhookBlock struct {
	URL    string `yaml:"url" jsonschema:"required" jsonschema_description:"Where messages go."`
	Secret string `yaml:"secret" jsonschema:"required" jsonschema_description:"What signs them: whsec_ and 24 to 64 random octets in base64."`
}

type providerBlock struct {
	Adapter        string          `yaml:"adapter" jsonschema:"required" jsonschema_description:"The protocol that the provider speaks. Its settings stand in a block of the same name."`
	Concurrency    int             `yaml:"concurrency" jsonschema:"minimum=1,maximum=10000,default=32" jsonschema_description:"Requests in flight at once, over all workers together."`
	Timeout        time.Duration   `yaml:"timeout" jsonschema:"default=30s" jsonschema_description:"The longest one dispatch may take; after it the outcome is ambiguous."`
	RateLimit      *rateLimitBlock `yaml:"rate_limit" jsonschema_description:"How many requests may start, over all workers together. Left out, any number."`
	CircuitBreaker breakerBlock    `yaml:"circuit_breaker" jsonschema_description:"When the provider is left alone because it is overloaded, by all workers together."`
	Egress         egressBlock     `yaml:"egress" jsonschema_description:"Where connections to this provider may go."`
	TLS            tlsBlock        `yaml:"tls" jsonschema_description:"Whom to trust, and who we are, in TLS sessions with this provider."`
	Fallback       string          `yaml:"fallback" jsonschema_description:"The provider that serves while this one's circuit breaker is open, for intents of which nothing may have been applied. It has every operation of this one, with the same class, and no fallback itself."`
	Tools          list            `yaml:"tools" jsonschema:"required" jsonschema_description:"The operations by name: the part of a tool name after its first slash."`
}

type rateLimitBlock struct {
	PerSecond float64 `yaml:"per_second" jsonschema:"required,minimum=0.00001,maximum=1000000" jsonschema_description:"Requests a second in the long run; may be a fraction."`
	Burst     *int    `yaml:"burst" jsonschema:"minimum=1,maximum=10000" jsonschema_description:"Requests that may start at once after a quiet time; per_second rounded up by default."`
}

type breakerBlock struct {
	ConsecutiveFailures int           `yaml:"consecutive_failures" jsonschema:"minimum=1,maximum=10000,default=3" jsonschema_description:"Overloads in a row, seen by one worker, that open the breaker for all: 503, 529, no connection, no answer. It cannot be switched off; 10000 comes close."`
	CoolDown            time.Duration `yaml:"cool_down" jsonschema:"default=10s" jsonschema_description:"How long the provider is left alone before one request tries it again; a longer Retry-After counts."`
}

type toolBlock struct {
	Idempotency    idempotencyBlock   `yaml:"idempotency" jsonschema:"required" jsonschema_description:"What repeating a call does; it decides whether an ambiguous failure may be retried."`
	Retry          retryBlock         `yaml:"retry" jsonschema_description:"How often and how soon to try again: Full Jitter, with Retry-After as a floor."`
	PayloadSchema  *payloadSchema     `yaml:"payload_schema" jsonschema_description:"A JSON Schema, as a block or as text such as ${file:/etc/drainer/charge.schema.json}. A payload that violates it is rejected and never sent."`
	Lookup         *lookupBlock       `yaml:"lookup" jsonschema_description:"How to learn whether an attempt in doubt had its effect. Without it such an intent ends as unknown once it cannot be retried."`
	CompensateWith *compensationBlock `yaml:"compensate_with" jsonschema_description:"What undoes the effect when the agent run is compensated."`
	Compensation   string             `yaml:"compensation" jsonschema:"enum=none" jsonschema_description:"none: there is nothing to undo. Instead of compensate_with; with neither, a run that needs an undo ends as compensation_failed."`
	ReversalWindow *time.Duration     `yaml:"reversal_window" jsonschema_description:"How long after the effect it can still be undone, such as 72h."`
	OnFailure      string             `yaml:"on_failure" jsonschema:"enum=compensate,enum=dead_letter,default=compensate" jsonschema_description:"What follows when an intent fails for good. compensate: everything that its agent run has completed is undone, the newest first. dead_letter: nothing, until somebody decides."`
	Retention      *time.Duration     `yaml:"retention" jsonschema_description:"How long settled intents of this tool are kept; not shorter than the ttl of its keys."`
}

type lookupBlock struct {
	Tool   string         `yaml:"tool" jsonschema:"required" jsonschema_description:"A read_only operation of the same provider, called with the intent's own payload and key."`
	Margin *time.Duration `yaml:"margin" jsonschema:"default=30s" jsonschema_description:"Added to the deadline of the last send; only after that is it believed that there was no effect."`
}

type compensationBlock struct {
	Tool    string `yaml:"tool" jsonschema:"required" jsonschema_description:"The tool by its full name, such as stripe/refund; it may belong to another provider. An undo must be safe to repeat: a non_idempotent one needs a lookup."`
	Payload string `yaml:"payload" jsonschema_description:"A jq expression that makes the undo's payload, an object, over {payload, response, provider_ref, key, agent_run_id, step_id, tool_name, business_scope} of what is undone; response and provider_ref are null where none is known. A field that is null makes the undo fail. Without it the payload of what is undone is sent again."`
}

type idempotencyBlock struct {
	Class dispatch.Class `yaml:"class" jsonschema:"required" jsonschema_description:"read_only: no effect. naturally_idempotent: repeating changes nothing. key_idempotent: the provider recognises the key. non_idempotent: repeating repeats the effect."`
	TTL   time.Duration  `yaml:"ttl" jsonschema_description:"How long the provider remembers a key, at most 3650d; required for key_idempotent and for no other class. No retry follows an ambiguous failure after half of it."`
	Scope string         `yaml:"scope" jsonschema_description:"Within what the provider tells keys apart, such as account; required for key_idempotent and for no other class."`
}

type retryBlock struct {
	MaxAttempts int           `yaml:"max_attempts" jsonschema:"minimum=1,maximum=10000,default=8" jsonschema_description:"Attempts in all, the first included."`
	Base        time.Duration `yaml:"base" jsonschema:"default=500ms" jsonschema_description:"Upper bound of the delay after the first attempt; it doubles with each further one."`
	Cap         time.Duration `yaml:"cap" jsonschema:"default=10m" jsonschema_description:"What that bound never exceeds."`
}
