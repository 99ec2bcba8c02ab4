// Package config reads drainer's YAML file: the providers and how to serve them.
//
//	bytes ──parse──▶ tree ──resolve secrets──▶ tree ──decode, validate──▶ Config
//
// Reading is strict and goes on after a mistake, so that one run reports all of them, each
// with file, line and column. An adapter decodes its own blocks while the file is validated.
//
// Read load.go first (the file's shape), then source.go (the decoder), provider.go and
// validate.go (the rules).
package config

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/duration"
)

// Config is a valid configuration file with its defaults filled in, its
// secrets expanded and its adapters built.
type Config struct {
	Database      Database
	Worker        Worker
	Server        Server
	Console       Console
	Log           Log
	Retention     Retention
	Unconfigured  Unconfigured
	Misconfigured Misconfigured
	History       History
	Digests       Digests             // of each block as it is written in the file; references are not read
	Lossless      bool                // a failover of the database loses no commit, says the operator
	Providers     []dispatch.Provider // in the order of the file
	Pages         []Page              // in the order of the file
	PageRepeat    time.Duration       // time between two pages about one incident
	PageConsole   string              // the console's URL in browsers, to which pages link; if empty, pages have no link
	Secrets       []string            // values of references, and of fields with names of credentials; they must never be shown
	Files         []File              // every file that was read, the configuration file first
	Unread        []Unread            // the values that LoadWithoutSecrets did not read
}

// Unread is a value whose references were not read.
type Unread struct {
	Path       string   // of the field, such as providers.stripe.http.headers.Authorization
	Provider   string   // the provider of that field; empty if it is of none
	References []string // without ${ and }, such as env:STRIPE_KEY
}

// Digests holds a digest of the text of each block, and of each provider under providers.NAME. Digests are keyed
// before others see them.
type Digests map[string][sha256.Size]byte

// Sum does not depend on the order of the blocks and providers in the file.
func (d Digests) Sum() []byte {
	sum := sha256.New()
	for _, block := range slices.Sorted(maps.Keys(d)) {
		fmt.Fprintf(sum, "%q %x\n", block, d[block])
	}
	return sum.Sum(nil)
}

// digestsOf needs a tree whose references are not resolved: their values may differ between replicas.
func digestsOf(root ast.Node) Digests {
	digests := Digests{}
	each := func(node ast.Node, do func(name string, value ast.Node)) bool {
		mapping, ok := node.(ast.MapNode)
		if ok {
			for entry := mapping.MapRange(); entry.Next(); {
				do(keyName(entry.Key()), entry.Value())
			}
		}
		return ok
	}
	digest := func(name string, value ast.Node) { digests[name] = sha256.Sum256([]byte(value.String())) }
	isMapping := each(root, func(block string, value ast.Node) {
		isSplit := block == "providers" && each(value, func(provider string, value ast.Node) { digest("providers."+provider, value) })
		if !isSplit {
			digest(block, value)
		}
	})
	// An alias may refer to a value in another block. Then each digest covers the whole file.
	if root != nil && (!isMapping || len(ast.Filter(ast.AliasType, root)) > 0) {
		whole := root.String()
		for name, own := range digests {
			digests[name] = sha256.Sum256([]byte(string(own[:]) + whole))
		}
		digest("", root)
	}
	return digests
}

// Retentions returns the retention of each tool in the file, by full name.
func (c *Config) Retentions() map[string]time.Duration {
	kept := map[string]time.Duration{}
	for tool := range c.Tools() {
		kept[tool] = c.Retention.Default
	}
	maps.Copy(kept, c.Retention.Tools)
	return kept
}

// Tools yields every tool with its full name: providers in the order of the file, their
// operations in alphabetical order.
func (c *Config) Tools() iter.Seq2[string, dispatch.Policy] {
	return func(yield func(string, dispatch.Policy) bool) {
		for _, provider := range c.Providers {
			for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
				if !yield(fullName(provider.Name, operation), provider.Tools[operation]) {
					return
				}
			}
		}
	}
}

// Provider finds a provider by its name. A nil Config has none.
func (c *Config) Provider(name string) (provider dispatch.Provider, known bool) {
	if c == nil {
		return provider, false
	}
	at := slices.IndexFunc(c.Providers, func(p dispatch.Provider) bool { return p.Name == name })
	if at < 0 {
		return provider, false
	}
	return c.Providers[at], true
}

// Policy finds the policy of a provider's operation.
func (c *Config) Policy(provider, operation string) (policy dispatch.Policy, known bool) {
	found, _ := c.Provider(provider)
	policy, known = found.Tools[operation]
	return policy, known
}

// Uncompensated lists the tools that act and have neither compensate_with nor
// compensation: none. A run that used one of them cannot be rolled back. The list is empty
// if no tool's failure rolls a run back.
func (c *Config) Uncompensated() []string {
	var silent []string
	compensates := false
	for name, policy := range c.Tools() {
		compensates = compensates || policy.BeginsSaga || policy.RefusalBeginsSaga
		if policy.Class != dispatch.ReadOnly && policy.Reversal.Tool == "" && !policy.Reversal.None {
			silent = append(silent, name)
		}
	}
	if !compensates {
		return nil
	}
	return silent
}

// MissingSafeguards lists the fields that a tool needs before agents may use it without a
// human. A non_idempotent tool needs a lookup, an undo, and the time in which it can be
// undone. Other tools need none.
func MissingSafeguards(policy dispatch.Policy) []string {
	if policy.Class != dispatch.NonIdempotent {
		return nil
	}
	var missing []string
	if policy.Lookup == nil {
		missing = append(missing, "lookup")
	}
	if policy.Reversal.Tool == "" {
		missing = append(missing, "compensate_with")
	}
	if policy.Reversal.Window == 0 {
		missing = append(missing, "reversal_window")
	}
	return missing
}

// Page is one channel that gets incidents.
type Page struct {
	Name   string // unique
	Kind   PageKind
	URL    string // a secret for Slack
	Secret string // PagerDuty's routing key, or the key that signs a webhook's messages
	Match  incident.Match
}

// PageKind is the protocol of a channel.
type PageKind string

// The kinds, as the file names them.
const (
	PagerDuty    PageKind = "pagerduty"
	Slack        PageKind = "slack"
	Alertmanager PageKind = "alertmanager"
	Webhook      PageKind = "webhook"
)

// lossless is the only value of failover.
const lossless = "lossless"

// PageKinds lists all kinds.
func PageKinds() []PageKind { return []PageKind{PagerDuty, Slack, Alertmanager, Webhook} }

// The following types are the file's shape: the decoder reads them, and [Schema] publishes
// them. Lists of named blocks are decoded one by one.

type rootBlock struct {
	Version       int           `yaml:"version" jsonschema:"required,enum=1" jsonschema_description:"Version of this file's format."`
	Database      databaseBlock `yaml:"database" jsonschema_description:"The Postgres database that holds the outbox."`
	Worker        Worker        `yaml:"worker" jsonschema_description:"Heartbeats, lease and shutdown of a worker."`
	Server        Server        `yaml:"server" jsonschema_description:"The HTTP listener of /metrics, /livez and /readyz."`
	Console       Console       `yaml:"console" jsonschema_description:"The web page in the daemon. Without listen it is off."`
	Log           Log           `yaml:"log" jsonschema_description:"The lines on standard error."`
	Egress        egressBlock   `yaml:"egress" jsonschema_description:"Allowed destinations; a provider's own egress overrides it, field by field."`
	Unconfigured  Unconfigured  `yaml:"unconfigured" jsonschema_description:"For intents of an operation that a provider of this file does not have."`
	Misconfigured Misconfigured `yaml:"misconfigured" jsonschema_description:"For intents that wait for a corrected configuration: credentials, a permission, or a request that cannot be rendered."`
	Failover      string        `yaml:"failover" jsonschema:"enum=lossless" jsonschema_description:"Every standby that may be promoted is synchronous. After a failover nothing waits for an operator, unless a daemon misses a commit."`
	History       History       `yaml:"history" jsonschema_description:"How lost commits of the database are noticed."`
	Retention     Retention     `yaml:"retention" jsonschema_description:"How long settled intents and their keys are kept. Enqueued again later, they act again."`
	Providers     list          `yaml:"providers" jsonschema_description:"The part of a tool name before its first slash."`
	Pages         []pageBlock   `yaml:"pages" jsonschema_description:"Channels that get incidents, at most 16. Without one, they are only listed and counted."`
	PageRepeat    time.Duration `yaml:"page_repeat" jsonschema:"default=30m" jsonschema_description:"How often an open group of incidents is paged again. Alertmanager repeats by its own settings."`
	PageConsole   string        `yaml:"page_console" jsonschema_description:"The console's URL in browsers. Pages link to it."`
}

type databaseBlock struct {
	URL             string        `yaml:"url" jsonschema_description:"Its URL. Default: ${env:DATABASE_URL}. --database-url overrides the whole block."`
	Password        string        `yaml:"password" jsonschema_description:"The password, if the URL has none: ${file:/run/secrets/password}. Not with password_command."`
	PasswordCommand []string      `yaml:"password_command" jsonschema:"minItems=1" jsonschema_description:"A program that prints the password within 15s, with its arguments and without a shell. On the PATH, or absolute."`
	PasswordTTL     time.Duration `yaml:"password_ttl" jsonschema:"default=1m" jsonschema_description:"How long further connects use a printed password. A refused one is not used again."`
	Schema          string        `yaml:"schema" jsonschema:"enum=outbox,default=outbox" jsonschema_description:"The schema of the outbox."`
}

// Worker sets heartbeats, lease and shutdown of a worker.
type Worker struct {
	Heartbeat       time.Duration `yaml:"heartbeat" jsonschema:"default=3s" jsonschema_description:"Time between two heartbeats, at most 30s."`
	Lease           time.Duration `yaml:"lease" jsonschema:"default=15s" jsonschema_description:"A worker without a heartbeat for this long is declared dead. It stops sending after two thirds of the time. At least three times heartbeat."`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" jsonschema:"default=25s" jsonschema_description:"Time for requests in flight to finish after SIGTERM. The supervisor's SIGKILL must come later."`
}

// Server is the HTTP listener of /metrics, /livez and /readyz.
type Server struct {
	Listen           string `yaml:"listen" jsonschema_description:"host:port; without a host, every address. Default: $DRAINER_LISTEN, which the image sets to :9464, else 127.0.0.1:9464."`
	Debug            string `yaml:"debug" jsonschema_description:"host:port on loopback for /debug/pprof/. Default: none."`
	NativeHistograms bool   `yaml:"native_histograms" jsonschema_description:"Offers histograms in Prometheus's native form, too."`
}

// Console configures the console in a daemon. It is off if Listen is empty.
type Console struct {
	Listen       string      `yaml:"listen" jsonschema_description:"host:port, such as 127.0.0.1:9465. An address that other machines reach needs tokens, oidc or a proxy."`
	DatabaseFile string      `yaml:"database_file" jsonschema_description:"A file with the URL of an outbox_operator login, read at each connect. Default: the daemon's login, which shows all and changes nothing."`
	ViewerFile   string      `yaml:"viewer_database_file" jsonschema_description:"The same of an outbox_auditor login, which reads every page. Then database_file's login only changes and reveals. Default: it reads, too."`
	Tokens       string      `yaml:"tokens" jsonschema_description:"A file of people and their tokens."`
	OIDC         ConsoleOIDC `yaml:"oidc" jsonschema_description:"People log in at an OpenID Connect issuer."`
	TLS          ConsoleTLS  `yaml:"tls" jsonschema_description:"HTTPS. Renewed files need no restart."`
	TrustProxy   []string    `yaml:"trust_proxy" jsonschema_description:"Address ranges of a proxy that authenticates people."`
	ProxyCAFile  string      `yaml:"proxy_ca_file" jsonschema_description:"A file of authorities, in PEM. Connections without their client certificate are refused. Needs tls and proxy_names."`
	ProxyNames   []string    `yaml:"proxy_names" jsonschema_description:"DNS names or URIs: the proxy's certificate has one."`
	UserHeader   string      `yaml:"user_header" jsonschema:"default=X-Forwarded-User" jsonschema_description:"The proxy's header with the person's name."`
	GroupHeader  string      `yaml:"group_header" jsonschema:"default=X-Forwarded-Groups" jsonschema_description:"Its header with groups, between commas."`
	Operators    string      `yaml:"operators" jsonschema_description:"The group whose members may change things."`
	Viewers      string      `yaml:"viewers" jsonschema_description:"The group whose members may read. Default: all who are authenticated."`
	Redact       []string    `yaml:"redact" jsonschema_description:"Paths that are never shown, such as .card.number, .items[].secret or .*.token."`
	TraceURL     string      `yaml:"trace_url" jsonschema_description:"A trace's address in the tracing system, with {trace_id} in it. Intents link to it. Viewers see it: it must hold no credentials."`
}

// ConsoleTLS names the files of the console's certificate.
type ConsoleTLS struct {
	CertificateFile string `yaml:"certificate_file" jsonschema:"required" jsonschema_description:"The certificate with its chain, in PEM."`
	KeyFile         string `yaml:"key_file" jsonschema:"required" jsonschema_description:"Its private key, in PEM."`
}

// ConsoleOIDC is the console's registration at an issuer.
type ConsoleOIDC struct {
	Issuer     string `yaml:"issuer" jsonschema:"required" jsonschema_description:"The issuer's URL."`
	Client     string `yaml:"client" jsonschema:"required" jsonschema_description:"The console's id at the issuer."`
	SecretFile string `yaml:"secret_file" jsonschema_description:"A file of the client's secret. Without it the client is public."`
	Groups     string `yaml:"groups" jsonschema:"default=groups" jsonschema_description:"The claim that lists a person's groups."`
	URL        string `yaml:"url" jsonschema:"required" jsonschema_description:"The console's URL in browsers. The issuer returns people to its path /oidc/callback."`
}

// Log chooses the lines that a daemon writes.
type Log struct {
	Level          string `yaml:"level" jsonschema:"enum=info,enum=warn,enum=error,default=info" jsonschema_description:"The lowest level that is written. Completed attempts and retries are info."`
	Format         string `yaml:"format" jsonschema:"enum=json,enum=text" jsonschema_description:"Default: text on a terminal, else json."`
	CompletedEvery int    `yaml:"completed_every" jsonschema:"minimum=1,default=1" jsonschema_description:"One in so many completed attempts gets a line; other outcomes always do. outbox.attempt and the metrics have all."`
}

// Unconfigured is for intents of an operation that a configured provider does not have.
type Unconfigured struct {
	FailAfter time.Duration `yaml:"fail_after" jsonschema:"default=7d" jsonschema_description:"After this long without a worker for it, such an intent fails, or is unknown if in doubt. Its run goes on. Intents of a provider that no file names wait forever."`
}

// Misconfigured is for intents that wait for a corrected configuration.
type Misconfigured struct {
	FailAfter time.Duration `yaml:"fail_after" jsonschema:"default=1d" jsonschema_description:"How long such an intent waits. Then it fails, and on_failure counts; in doubt, it is unknown."`
}

// History says how lost commits of the database are noticed.
type History struct {
	Witness string `yaml:"witness" jsonschema_description:"A file of this daemon alone, on a disk that outlives it and is in no backup of the database. It holds how far the daemon saw the database's history, and is compared at the start."`
}

// Retention is how long settled intents and their keys are kept. An intent that is enqueued again later acts
// again. In the file it is a block, or a duration alone: the default.
type Retention struct {
	Default time.Duration            `yaml:"default" jsonschema:"default=90d" jsonschema_description:"For tools without a retention of their own."`
	MaxRun  time.Duration            `yaml:"max_run" jsonschema:"default=365d" jsonschema_description:"A run in use keeps its old intents at most this long, for undos."`
	Tools   map[string]time.Duration `yaml:"-"` // by full name, for tools that have a retention of their own
}

// pageBlock holds one channel.
type pageBlock struct {
	Name         string             `yaml:"name" jsonschema_description:"Its name in metrics and logs. Default: its kind. Two of a kind need names."`
	Match        matchBlock         `yaml:"match" jsonschema_description:"The incidents that it gets: those that every list here has. Default: every incident of the severity page."`
	PagerDuty    *pagerDutyBlock    `yaml:"pagerduty" jsonschema_description:"PagerDuty, through its Events API v2."`
	Slack        *slackBlock        `yaml:"slack" jsonschema_description:"A Slack incoming webhook."`
	Alertmanager *alertmanagerBlock `yaml:"alertmanager" jsonschema_description:"An Alertmanager, through its API v2. An acknowledgement ends the alert."`
	Webhook      *webhookBlock      `yaml:"webhook" jsonschema_description:"A receiver of messages signed as Standard Webhooks specifies."`
}

type matchBlock struct {
	Kinds      []incident.Kind     `yaml:"kinds" jsonschema_description:"Kinds of incidents, such as outcome_unknown."`
	Severities []incident.Severity `yaml:"severities" jsonschema_description:"Instead of kinds. Default: page."`
	Providers  []string            `yaml:"providers" jsonschema_description:"Default: all."`
	Tools      []string            `yaml:"tools" jsonschema_description:"As provider/operation. Default: all."`
}

type pagerDutyBlock struct {
	RoutingKey string `yaml:"routing_key" jsonschema:"required" jsonschema_description:"A service's integration key, such as ${file:/run/secrets/pagerduty}."`
	URL        string `yaml:"url" jsonschema:"default=https://events.pagerduty.com/v2/enqueue" jsonschema_description:"For accounts in Europe: https://events.eu.pagerduty.com/v2/enqueue."`
}

type slackBlock struct {
	WebhookURL string `yaml:"webhook_url" jsonschema:"required" jsonschema_description:"Its URL is a secret, such as ${env:SLACK_WEBHOOK}."`
}

type alertmanagerBlock struct {
	URL string `yaml:"url" jsonschema:"required" jsonschema_description:"Its address, without /api/v2/alerts."`
}

type webhookBlock struct {
	URL    string `yaml:"url" jsonschema:"required" jsonschema_description:"Where messages go."`
	Secret string `yaml:"secret" jsonschema:"required" jsonschema_description:"It signs them: whsec_ and 24 to 64 random bytes in base64."`
}

type providerBlock struct {
	Adapter        string          `yaml:"adapter" jsonschema:"required" jsonschema_description:"The protocol. Its settings are in a block of the same name."`
	Concurrency    int             `yaml:"concurrency" jsonschema:"minimum=1,maximum=10000,default=32" jsonschema_description:"Requests in flight, over all workers together."`
	Timeout        time.Duration   `yaml:"timeout" jsonschema:"default=30s" jsonschema_description:"The longest time for one dispatch; after it the outcome is ambiguous."`
	RateLimit      *rateLimitBlock `yaml:"rate_limit" jsonschema_description:"Requests that may start, over all workers together. Default: any number."`
	CircuitBreaker breakerBlock    `yaml:"circuit_breaker" jsonschema_description:"When all workers stop sending to a provider, or to one of its operations."`
	Egress         egressBlock     `yaml:"egress" jsonschema_description:"Allowed destinations of this provider."`
	TLS            tlsBlock        `yaml:"tls" jsonschema_description:"TLS with this provider."`
	Idempotency    namespaceBlock  `yaml:"idempotency" jsonschema_description:"Separates the keys of two outboxes on one account."`
	Fallback       string          `yaml:"fallback" jsonschema_description:"A provider that serves while this one's circuit breaker is open. It has all operations of this one, with the same classes, and no fallback."`
	Tools          list            `yaml:"tools" jsonschema:"required" jsonschema_description:"The part of a tool name after its first slash."`
}

type rateLimitBlock struct {
	PerSecond float64 `yaml:"per_second" jsonschema:"required,minimum=0.00001,maximum=1000000" jsonschema_description:"Requests a second on average; may be a fraction."`
	Burst     *int    `yaml:"burst" jsonschema:"minimum=1,maximum=10000" jsonschema_description:"Requests that may start at once after a quiet time. Default: per_second, rounded up."`
}

type breakerBlock struct {
	FailureRate         float64       `yaml:"failure_rate" jsonschema:"minimum=0.01,maximum=1,default=0.5" jsonschema_description:"Share of an operation's intents that must fail at one worker, with a timeout, a 5xx or an overload, to shut the operation for all."`
	Window              time.Duration `yaml:"window" jsonschema:"default=30s" jsonschema_description:"The time over which failure_rate counts intents, each once, however often it is tried."`
	MinimumIntents      int           `yaml:"minimum_intents" jsonschema:"minimum=1,maximum=1000,default=10" jsonschema_description:"With fewer intents in the window, failure_rate shuts nothing."`
	ConsecutiveFailures int           `yaml:"consecutive_failures" jsonschema:"minimum=1,maximum=10000,default=5" jsonschema_description:"Overloads in a row at one worker (429, 503, 529, no connection) that shut the provider for all. It cannot be switched off; 10000 comes close."`
	CoolDown            time.Duration `yaml:"cool_down" jsonschema:"default=10s" jsonschema_description:"Time until one request tests what is shut; a longer Retry-After counts."`
}

type namespaceBlock struct {
	Namespace string `yaml:"namespace" jsonschema:"pattern=^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$" jsonschema_description:"Part of the keys of later intents; waiting ones keep their key. Default: the namespace in outbox.setting."`
}

type toolBlock struct {
	Idempotency    idempotencyBlock   `yaml:"idempotency" jsonschema:"required" jsonschema_description:"What a repeated call does. It decides whether an ambiguous failure may be retried."`
	Retry          retryBlock         `yaml:"retry" jsonschema_description:"Retries: Full Jitter, with Retry-After as a floor."`
	PayloadSchema  *payloadSchema     `yaml:"payload_schema" jsonschema_description:"A JSON Schema, as a block or from ${file:/etc/drainer/charge.schema.json}. A payload that violates it is never sent."`
	Lookup         *lookupBlock       `yaml:"lookup" jsonschema_description:"Asks the provider whether an attempt in doubt had its effect. Without it the intent is unknown once it cannot be retried."`
	CompensateWith *compensationBlock `yaml:"compensate_with" jsonschema_description:"The undo of the effect."`
	Compensation   string             `yaml:"compensation" jsonschema:"enum=none" jsonschema_description:"none: there is nothing to undo. With neither this nor compensate_with, a rollback that reaches this tool ends as compensation_failed."`
	ReversalWindow *time.Duration     `yaml:"reversal_window" jsonschema_description:"How long after the effect an undo is possible, such as 72h."`
	OnFailure      string             `yaml:"on_failure" jsonschema:"enum=compensate,enum=dead_letter,default=compensate" jsonschema_description:"When an intent fails for good. compensate: its run is rolled back. dead_letter: it waits for an operator."`
	OnRefused      string             `yaml:"on_refused" jsonschema:"enum=dead_letter,enum=compensate,default=dead_letter" jsonschema_description:"When drainer itself refuses an intent. dead_letter: only that intent fails, with an incident. compensate: its run is rolled back, so any agent can have any run rolled back."`
	OnFirstReplay  string             `yaml:"on_first_replay" jsonschema:"enum=incident,enum=accept" jsonschema_description:"When the provider already knows the key at an intent's first attempt, which completes it. incident, the default of key_idempotent tools: an incident is opened, too. accept: it is only counted."`
	Retention      *time.Duration     `yaml:"retention" jsonschema_description:"How long settled intents of this tool are kept, at least the ttl of its keys."`
}

type lookupBlock struct {
	Tool   string         `yaml:"tool" jsonschema:"required" jsonschema_description:"A read_only operation of the same provider."`
	Margin *time.Duration `yaml:"margin" jsonschema:"default=30s" jsonschema_description:"Time from the last attempt's deadline to the lookup. An earlier one could miss the effect."`
}

type compensationBlock struct {
	Tool    string `yaml:"tool" jsonschema:"required" jsonschema_description:"The full name, such as stripe/refund, of any provider. A non_idempotent undo needs a lookup."`
	Payload string `yaml:"payload" jsonschema_description:"A jq expression over the undone step that makes the undo's payload, an object without null fields. Default: the step's payload."`
}

type idempotencyBlock struct {
	Class dispatch.Class `yaml:"class" jsonschema:"required" jsonschema_description:"read_only: no effect. naturally_idempotent: repeating changes nothing. key_idempotent: the provider recognises the key. non_idempotent: repeating repeats the effect."`
	TTL   time.Duration  `yaml:"ttl" jsonschema_description:"How long the provider remembers a key, at most 3650d. Required for key_idempotent, and only there. After half of it no ambiguous failure is retried."`
	Scope string         `yaml:"scope" jsonschema_description:"Where keys are unique, such as account. Required for key_idempotent, and only there."`
}

type retryBlock struct {
	MaxAttempts int           `yaml:"max_attempts" jsonschema:"minimum=1,maximum=10000,default=8" jsonschema_description:"Attempts in all, the first included."`
	Base        time.Duration `yaml:"base" jsonschema:"default=500ms" jsonschema_description:"Upper bound of the first delay. It doubles with each attempt."`
	Cap         time.Duration `yaml:"cap" jsonschema:"default=10m" jsonschema_description:"Where that bound stops growing."`
	MaxWait     time.Duration `yaml:"max_wait" jsonschema:"default=24h" jsonschema_description:"The longest wait that a provider may ask for. A longer one is cut to this, and logged."`
}

// Load reads a file, fills in defaults, expands secrets and builds the adapters. It returns
// every mistake in one *InvalidError. Config and InvalidError list the files that were read.
func Load(path string, registry dispatch.Registry) (*Config, error) {
	return loadFrom(path, registry, false, everything)
}

// LoadWithoutSecrets is Load for commands that send nothing. It reads no credential of a provider or a pager, and
// reads the URL of the database only if database is true. A provider that needs an unread value has a nil Adapter.
// All other references are read, because they may decide how an intent may be treated.
func LoadWithoutSecrets(path string, registry dispatch.Registry, database bool) (*Config, error) {
	return loadFrom(path, registry, false, wanted{database: database})
}

// Reload is Load for a running daemon. It reads no pipe and no device, because such a read could block without
// notice. It does not read the login of the database either: that is read at each connect.
func Reload(path string, registry dispatch.Registry) (*Config, error) {
	return loadFrom(path, registry, true, wanted{providers: true})
}

// ListenOf reads server.listen only, and accepts mistakes elsewhere in the file: a running daemon has rejected
// such a file and still listens. It returns "" if the file does not set the field, and an error if the value
// cannot be read.
func ListenOf(path string) (string, error) {
	sources := &sources{read: map[string]source{}}
	content, err := sources.readFile(path)
	if err != nil {
		return "", &Error{File: path, Message: fmt.Sprintf("cannot be read: %s", reason(err))}
	}
	root, problem := parse(path, content)
	if problem != nil {
		return "", problem
	}
	var block struct {
		Server struct {
			Listen string `yaml:"listen"`
		} `yaml:"server"`
	}
	r := newReader(path, &secrets{lookupEnv: os.LookupEnv, readFile: sources.readFile, later: true})
	root = (&resolver{reader: r, anchors: map[string]ast.Node{}}).resolve(root)
	r.decode(field{key: token.Position{Line: 1, Column: 1}, value: root}, reflect.ValueOf(&block).Elem())
	listen := block.Server.Listen
	_, _, err = net.SplitHostPort(listen)
	if r.faulty[""] || r.faulty["server"] || r.faulty["server.listen"] || listen != "" && err != nil {
		return "", &Error{File: path, Message: "server.listen: want host:port or :port, such as :9464"}
	}
	return listen, nil
}

// wanted says which references are read: those of providers, and those of the database block.
type wanted struct{ providers, database bool }

var everything = wanted{providers: true, database: true}

func loadFrom(path string, registry dispatch.Registry, noPipes bool, wanted wanted) (config *Config, err error) {
	sources := &sources{read: map[string]source{}, noPipes: noPipes}
	content, err := sources.readFile(path)
	if err != nil {
		err = invalid([]*Error{{File: path, Message: fmt.Sprintf("cannot be read: %s; correct --config", reason(err))}})
	} else {
		config, err = load(path, content, registry, &secrets{lookupEnv: os.LookupEnv, readFile: sources.readFile, readUnwatched: readTogether(noPipes)}, wanted)
	}
	var mistakes *InvalidError
	if errors.As(err, &mistakes) {
		mistakes.Files = sources.files
	}
	if err != nil {
		return nil, err
	}
	config.Files = sources.files
	return config, nil
}

func load(name string, content []byte, registry dispatch.Registry, secrets *secrets, wanted wanted) (*Config, error) {
	root, problem := parse(name, content)
	if problem != nil {
		return nil, invalid([]*Error{problem})
	}
	digests := digestsOf(root)
	r := newReader(name, secrets)
	r.adapters, r.usesDatabase, secrets.later = registry, wanted.database, !wanted.providers
	root = (&resolver{reader: r, anchors: map[string]ast.Node{}}).resolve(root)
	config := r.root(field{key: token.Position{Line: 1, Column: 1}, value: root}, registry)
	if err := invalid(r.problems); err != nil {
		return nil, err
	}
	config.Digests = digests
	config.Secrets, config.Unread = secrets.revealed, r.unread
	return config, nil
}

func (r *reader) root(f field, registry dispatch.Registry) *Config {
	block := defaultRoot()
	r.decode(f, reflect.ValueOf(&block).Elem())
	r.checkRoot(block)
	before := len(r.problems)
	if r.egress(path{"egress"}, block.Egress); len(r.problems) > before {
		block.Egress = defaultRoot().Egress // reported once, and not for each provider that inherits it
	}
	config := &Config{
		Database:      r.database(block.Database),
		Worker:        block.Worker,
		Server:        block.Server,
		Console:       block.Console,
		Log:           block.Log,
		Unconfigured:  block.Unconfigured,
		Misconfigured: block.Misconfigured,
		History:       block.History,
		Lossless:      block.Failover == lossless,
		Retention:     block.Retention,
		Pages:         r.pages(path{"pages"}, block.Pages),
		PageRepeat:    block.PageRepeat,
		PageConsole:   block.PageConsole,
		Providers:     []dispatch.Provider{}, // not nil: doctor distinguishes a file without providers from no file
	}
	for _, child := range block.Providers {
		config.Providers = append(config.Providers, r.provider(child, registry, block, config.Retention))
	}
	r.checkReferences(config.Providers)
	return config
}

// The defaults: a field that the file leaves out has this value.

// DefaultConsole returns a console that is off.
func DefaultConsole() Console {
	return Console{UserHeader: "X-Forwarded-User", GroupHeader: "X-Forwarded-Groups", OIDC: ConsoleOIDC{Groups: "groups"}}
}

func defaultRoot() rootBlock {
	return rootBlock{
		Database:      databaseBlock{PasswordTTL: time.Minute, Schema: "outbox"},
		Worker:        Worker{Heartbeat: 3 * time.Second, Lease: 15 * time.Second, ShutdownTimeout: 25 * time.Second},
		Console:       DefaultConsole(),
		Log:           Log{Level: "info", CompletedEvery: 1},
		Egress:        egressBlock{Private: allowPrivate},
		Unconfigured:  Unconfigured{FailAfter: 7 * duration.Day},
		Misconfigured: Misconfigured{FailAfter: duration.Day},
		Retention:     Retention{Default: 90 * duration.Day, MaxRun: 365 * duration.Day, Tools: map[string]time.Duration{}},
		PageRepeat:    30 * time.Minute,
	}
}

func defaultProvider() providerBlock {
	return providerBlock{
		Concurrency:    32,
		Timeout:        30 * time.Second,
		CircuitBreaker: breakerBlock{FailureRate: 0.5, Window: 30 * time.Second, MinimumIntents: 10, ConsecutiveFailures: 5, CoolDown: 10 * time.Second},
	}
}

func defaultTool() toolBlock {
	return toolBlock{
		Retry:     retryBlock{MaxAttempts: 8, Base: 500 * time.Millisecond, Cap: 10 * time.Minute, MaxWait: 24 * time.Hour},
		OnFailure: compensate,
		OnRefused: deadLetter,
	}
}

// Error is one mistake and its place. Line and Column count from 1; both are 0 if the
// mistake is the file itself.
type Error struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// InvalidError holds all mistakes of a file in the order of the file, and at least one.
type InvalidError struct {
	Problems []*Error
	Files    []File // the files that were read, or could not be; a later version of one may be valid
}

// Error puts each mistake on a line of its own.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, problem := range e.Problems {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find each mistake.
func (e *InvalidError) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, problem := range e.Problems {
		errs[i] = problem
	}
	return errs
}

func invalid(problems []*Error) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	problems = slices.CompactFunc(problems, func(a, b *Error) bool { return *a == *b })
	return &InvalidError{Problems: problems}
}

// syntaxError keeps the place and the message of the library's error. It drops the excerpt of
// the file, which may show a secret.
func syntaxError(file string, err error) *Error {
	var located yaml.Error
	if !errors.As(err, &located) {
		return &Error{File: file, Message: "is not YAML that can be read"}
	}
	problem := &Error{File: file, Message: located.GetMessage()}
	if token := located.GetToken(); token != nil {
		problem.Line, problem.Column = token.Position.Line, token.Position.Column
	}
	return problem
}
