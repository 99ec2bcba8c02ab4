package config

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/egress"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// provider reads one provider and builds its adapter, so that errors of the adapter are reported together with all
// others.
func (r *reader) provider(f field, registry dispatch.Registry, root rootBlock, retention Retention) dispatch.Provider {
	written := ""
	if f.value != nil {
		written = f.value.String()
	}
	block := defaultProvider()
	block.Egress = root.Egress
	blocks := r.decodeStruct(f, reflect.ValueOf(&block).Elem(), registry.Names()...)
	r.checkProvider(f.path, block)

	provider := dispatch.Provider{
		Name:        f.name(),
		Network:     dispatch.NewNetwork(r.egress(f.path.child("egress"), block.Egress).Dial, r.tls(f.path.child("tls"), block.TLS)),
		Concurrency: block.Concurrency,
		Timeout:     block.Timeout,
		RateLimit:   block.RateLimit.limit(),
		Breaker:     dispatch.BreakerPolicy(block.CircuitBreaker),
		Fallback:    block.Fallback,
		Namespace:   block.Idempotency.Namespace,
		Tools:       make(map[string]dispatch.Policy, len(block.Tools)),
	}
	spec := dispatch.Spec{
		Provider: f.name(),
		Timeout:  block.Timeout,
		Network:  provider.Network,
		Settings: r.ownBlock(f, blocks, block.Adapter, registry),
		Tools:    make(map[string]dispatch.ToolSpec, len(block.Tools)),
	}
	for _, child := range block.Tools {
		operation := child.name()
		tool := defaultTool()
		blocks := r.decodeStruct(child, reflect.ValueOf(&tool).Elem(), registry.Names()...)
		r.checkTool(child.path, tool)
		r.checkPromise(child.path, block.Adapter, tool.Idempotency.Class, registry)
		r.retain(child.path, fullName(provider.Name, operation), tool, retention)
		policy := tool.policy(block.Timeout)
		policy.HasFallback = block.Fallback != ""
		provider.Tools[operation] = policy
		spec.Tools[operation] = dispatch.ToolSpec{
			Class:    tool.Idempotency.Class,
			KeyTTL:   tool.Idempotency.TTL,
			Settings: r.ownBlock(child, blocks, block.Adapter, registry),
		}
	}
	for _, policy := range provider.Tools {
		if policy.Lookup == nil {
			continue
		}
		if tool, declared := spec.Tools[policy.Lookup.Operation]; declared {
			tool.AnswersLookups = true
			spec.Tools[policy.Lookup.Operation] = tool
		}
	}
	provider.Adapter = r.adapter(f.path, block.Adapter, spec, registry)
	// A credential of fewer than 8 bytes in the file itself is not redacted, and is hashed. So this digest stays
	// in the process. Digests that others may read are keyed.
	digest := sha256.Sum256([]byte(r.secrets.masked(written)))
	provider.Digest = digest[:]
	return provider
}

// checkPromise makes sure that the adapter's protocol can do what the tool's class says.
func (r *reader) checkPromise(at path, adapter string, class dispatch.Class, registry dispatch.Registry) {
	classes := registry[adapter].Classes
	if classes == nil || !isClass(class) || slices.Contains(classes, class) {
		return
	}
	r.reject(at.child("idempotency").child("class"), "the %s adapter cannot promise this; it can: %s", adapter, join(classes))
}

// fullName is the tool name that agents use.
func fullName(provider, operation string) string { return provider + "/" + operation }

// ownBlock returns the block that the provider's adapter decodes. A block for another
// adapter would have no effect, so it is reported.
func (r *reader) ownBlock(parent field, blocks map[string]field, adapter string, registry dispatch.Registry) dispatch.Block {
	if _, known := registry[adapter]; known {
		for name, other := range blocks {
			if name != adapter {
				r.report(other.key, describe(other.path, "the provider's adapter is "+adapter+"; leave this block out or choose adapter: "+name))
			}
		}
	}
	own, written := blocks[adapter]
	if !written {
		own = field{path: parent.path.child(adapter), key: parent.key}
	}
	return adapterBlock{reader: r, field: own}
}

func (r *reader) adapter(at path, name string, spec dispatch.Spec, registry dispatch.Registry) dispatch.Adapter {
	kind, known := registry[name]
	switch {
	case name == "":
		r.reject(at.child("adapter"), "choose the adapter that speaks to the provider; registered: %s", strings.Join(registry.Names(), ", "))
		return nil
	case !known:
		r.reject(at.child("adapter"), "there is no such adapter; %s", spelling.Suggest(name, registry.Names()))
		return nil
	}
	adapter, err := kind.New(spec)
	for _, complaint := range complaints(err) {
		about := at
		if complaint.tool != "" {
			about = at.child("tools").child(complaint.tool)
		}
		r.reject(about.child(name), "%s", r.secrets.redact(complaint.text))
	}
	if err != nil {
		return nil // not a nil pointer in a non-nil interface
	}
	return adapter
}

// errUnresolved is returned for a reference that was not read, and for a reference or an alias that is already
// reported.
var errUnresolved = errors.New("a value in this block is missing")

// adapterBlock is the part of the file that only the adapter understands.
type adapterBlock struct {
	reader *reader
	field  field
}

var _ dispatch.Block = adapterBlock{}

// Decode reports every mistake to the reader and returns them too, so that an adapter can
// simply return the error.
func (b adapterBlock) Decode(into any) error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return fmt.Errorf("a block is decoded into a pointer, not into %T", into)
	}
	problems, faults := len(b.reader.problems), len(b.reader.faulty)
	b.reader.decode(b.field, target.Elem())
	if noted := b.reader.problems[problems:]; len(noted) > 0 {
		return &InvalidError{Problems: noted}
	}
	if len(b.reader.faulty) > faults {
		return errUnresolved
	}
	return nil
}

// complaint is a mistake that an adapter found after it decoded its block.
type complaint struct {
	tool string // the operation with the mistake; empty for the provider's settings
	text string
}

// complaints splits joined errors, and keeps the text that was wrapped around them. It leaves out mistakes that
// are already reported.
func complaints(err error) []complaint {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []complaint
		for _, part := range joined.Unwrap() {
			all = append(all, complaints(part)...)
		}
		return all
	}
	if tool, ok := err.(*dispatch.ToolError); ok { //nolint:errorlint // the tree is walked node by node
		all := complaints(tool.Err)
		for i := range all {
			all[i].tool = tool.Operation
		}
		return all
	}
	if cause := errors.Unwrap(err); cause != nil {
		prefix := strings.TrimSuffix(err.Error(), cause.Error())
		all := complaints(cause)
		for i := range all {
			all[i].text = prefix + all[i].text
		}
		return all
	}
	if err == nil || errors.Is(err, errUnresolved) || errors.As(err, new(*Error)) {
		return nil
	}
	return []complaint{{text: strings.ReplaceAll(err.Error(), "\n", "; ")}}
}

func (t toolBlock) policy(timeout time.Duration) dispatch.Policy {
	policy := dispatch.Policy{
		Class:             t.Idempotency.Class,
		Timeout:           timeout,
		Lookup:            t.Lookup.lookup(),
		Reversal:          t.reversal(),
		BeginsSaga:        t.OnFailure == compensate,
		RefusalBeginsSaga: t.OnRefused == compensate,
		FirstReplayOpens:  t.Idempotency.Class == dispatch.KeyIdempotent && t.OnFirstReplay != accepted,
		KeyTTL:            t.Idempotency.TTL,
		MaxAttempts:       t.Retry.MaxAttempts,
		Backoff:           dispatch.Backoff{Base: t.Retry.Base, Cap: t.Retry.Cap},
		MaxWait:           t.Retry.MaxWait,
	}
	if t.PayloadSchema != nil {
		policy.Payload = t.PayloadSchema
	}
	return policy
}

func (t toolBlock) reversal() dispatch.Reversal {
	reversal := dispatch.Reversal{None: t.Compensation == nothingToUndo}
	if t.CompensateWith != nil {
		reversal.Tool, reversal.Payload = t.CompensateWith.Tool, t.CompensateWith.Payload
	}
	if t.ReversalWindow != nil {
		reversal.Window = *t.ReversalWindow
	}
	return reversal
}

// An optional block gets the defaults of its fields here.

func (l *lookupBlock) lookup() *dispatch.Lookup {
	if l == nil {
		return nil
	}
	lookup := &dispatch.Lookup{Operation: l.Tool, Margin: 30 * time.Second}
	if l.Margin != nil {
		lookup.Margin = *l.Margin
	}
	return lookup
}

func (l *rateLimitBlock) limit() dispatch.RateLimit {
	if l == nil {
		return dispatch.RateLimit{}
	}
	limit := dispatch.RateLimit{PerSecond: l.PerSecond, Burst: int(math.Ceil(l.PerSecond))}
	if l.Burst != nil {
		limit.Burst = *l.Burst
	}
	return limit
}

type egressBlock struct {
	Private string   `yaml:"private" jsonschema:"enum=allow,enum=deny,default=allow" jsonschema_description:"Whether loopback, private and reserved addresses may be reached. Link-local addresses and metadata services of clouds never are."`
	Allow   []string `yaml:"allow" jsonschema_description:"The only destinations: names, *.names below one, addresses, or blocks such as 10.0.0.0/8; each with :port or without. Default: all that are not denied."`
	Proxy   string   `yaml:"proxy" jsonschema_description:"The HTTP proxy for every connection, such as http://proxy.example:3128, or environment for HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Default: none."`
}

const (
	allowPrivate = "allow"
	denyPrivate  = "deny"
)

func (r *reader) egress(at path, block egressBlock) egress.Rules {
	if block.Private != allowPrivate && block.Private != denyPrivate {
		r.reject(at.child("private"), "want %s or %s", allowPrivate, denyPrivate)
	}
	rules := egress.Rules{DenyPrivate: block.Private == denyPrivate}
	if block.Allow != nil {
		rules.Allow = []egress.Target{}
	}
	for i, text := range block.Allow {
		target, err := egress.ParseTarget(text)
		if err != nil {
			r.reject(at.child("allow").child(strconv.Itoa(i)), "%s", err)
		}
		rules.Allow = append(rules.Allow, target)
	}
	if block.Proxy != "" {
		proxy, err := egress.ParseProxy(block.Proxy)
		if err != nil {
			r.reject(at.child("proxy"), "%s", err)
		}
		rules.Proxy = proxy
	}
	return rules
}

type tlsBlock struct {
	CA          string `yaml:"ca" jsonschema_description:"Certificate authorities in PEM, instead of the system's: ${file:/etc/drainer/ca.pem}."`
	Certificate string `yaml:"certificate" jsonschema_description:"The client certificate with its chain, in PEM. It needs a key."`
	Key         string `yaml:"key" jsonschema_description:"Its private key, in PEM."`
	ServerName  string `yaml:"server_name" jsonschema_description:"The name in the provider's certificate, if it is not that of its address."`
}

// tls returns nil for an empty block.
func (r *reader) tls(at path, block tlsBlock) *tls.Config {
	if block == (tlsBlock{}) {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: block.ServerName}
	if block.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(block.CA)) {
			r.reject(at.child("ca"), "holds no certificate in PEM; write ${file:/path/to/ca.pem}")
		}
	}
	switch {
	case block.Certificate == "" && block.Key == "":
	case block.Certificate == "":
		r.reject(at.child("certificate"), "is missing; the key alone proves nothing")
	case block.Key == "":
		r.reject(at.child("key"), "is missing; the certificate alone proves nothing")
	default:
		pair, err := tls.X509KeyPair([]byte(block.Certificate), []byte(block.Key))
		if err != nil {
			r.reject(at.child("certificate"), "certificate and key do not make a pair, in PEM")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

// maxChannels bounds the workers that channels can occupy while they hang.
const maxChannels = 16

func (r *reader) pages(at path, blocks []pageBlock) []Page {
	var pages []Page
	named := map[string]bool{}
	if len(blocks) > maxChannels {
		r.reject(at, "want %d channels at most", maxChannels)
	}
	for i, block := range blocks {
		at := at.child(strconv.Itoa(i))
		channels := block.channels()
		if len(channels) != 1 {
			r.reject(at, "want one channel: one of %s", join(PageKinds()))
			continue
		}
		page := channels[0]
		r.checkPage(at.child(string(page.Kind)), page)
		page.Name = cmp.Or(block.Name, string(page.Kind))
		page.Match = r.match(at.child("match"), block.Match)
		if named[page.Name] {
			r.reject(at.child("name"), "there is another channel of this name; give each a name of its own")
		}
		named[page.Name] = true
		pages = append(pages, page)
	}
	return pages
}

// channels returns every channel that the block names. Exactly one is valid.
func (b pageBlock) channels() []Page {
	var all []Page
	if c := b.PagerDuty; c != nil {
		all = append(all, Page{Kind: PagerDuty, URL: cmp.Or(c.URL, "https://events.pagerduty.com/v2/enqueue"), Secret: c.RoutingKey})
	}
	if c := b.Slack; c != nil {
		all = append(all, Page{Kind: Slack, URL: c.WebhookURL})
	}
	if c := b.Alertmanager; c != nil {
		all = append(all, Page{Kind: Alertmanager, URL: c.URL})
	}
	if c := b.Webhook; c != nil {
		all = append(all, Page{Kind: Webhook, URL: c.URL, Secret: c.Secret})
	}
	return all
}

func (r *reader) checkPage(at path, page Page) {
	field := "url"
	if page.Kind == Slack {
		field = "webhook_url"
	}
	if !isWebAddress(page.URL) {
		r.reject(at.child(field), "want an address that begins with https:// or http://")
	}
	switch {
	case page.Kind == PagerDuty && page.Secret == "":
		r.reject(at.child("routing_key"), "say which service to page: the integration key of its Events API v2")
	case page.Kind == Webhook && !canSign(page.Secret):
		r.reject(at.child("secret"), "want whsec_ and 24 to 64 random bytes in base64")
	}
}

func isWebAddress(text string) bool {
	address, err := url.Parse(text)
	return err == nil && (address.Scheme == "https" || address.Scheme == "http") && address.Host != ""
}

// canSign reports whether the secret is one of Standard Webhooks. A shorter key can be guessed, and a longer one
// is no better.
func canSign(secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	return err == nil && len(key) >= 24 && len(key) <= 64
}
