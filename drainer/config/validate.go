package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/incident"
	"github.com/agentoutbox/drainer/internal/duration"
	"github.com/agentoutbox/drainer/internal/jq"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// meant returns the end of a message: the known value that a typo probably meant, or "" if none is similar.
func meant(value string, known []string) string {
	nearest, near := spelling.Nearest(value, known)
	if !near {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", nearest)
}

func (r *reader) checkRoot(block rootBlock) {
	if block.Version != 1 {
		r.reject(path{"version"}, "this drainer reads format 1; write version: 1")
	}
	if block.Database.Schema != "outbox" {
		r.reject(path{"database", "schema"}, "the schema is always outbox; leave this out")
	}
	if _, _, err := net.SplitHostPort(block.Server.Listen); err != nil && block.Server.Listen != "" {
		r.reject(path{"server", "listen"}, "want host:port or :port, such as :9464")
	}
	if host, _, err := net.SplitHostPort(block.Server.Debug); block.Server.Debug != "" && (err != nil || host != "localhost" && !net.ParseIP(host).IsLoopback()) {
		r.reject(path{"server", "debug"}, "want a loopback address and a port, such as 127.0.0.1:6060: profiles show memory")
	}
	r.checkConsole(block.Console)
	if levels := []string{"info", "warn", "error"}; !slices.Contains(levels, block.Log.Level) {
		r.reject(path{"log", "level"}, "want info, warn or error%s", meant(block.Log.Level, levels))
	}
	if formats := []string{"json", "text"}; block.Log.Format != "" && !slices.Contains(formats, block.Log.Format) {
		r.reject(path{"log", "format"}, "want json or text%s", meant(block.Log.Format, formats))
	}
	if block.Log.CompletedEvery < 1 {
		r.reject(path{"log", "completed_every"}, "want 1 or more")
	}
	if block.Failover != "" && block.Failover != lossless {
		r.reject(path{"failover"}, "want lossless, or leave it out%s", meant(block.Failover, []string{lossless}))
	}
	r.checkWorker(block.Worker)
	r.checkRetention(path{"retention", "default"}, block.Retention.Default)
	r.checkRetention(path{"retention", "max_run"}, block.Retention.MaxRun)
	r.checkPositive(path{"unconfigured", "fail_after"}, block.Unconfigured.FailAfter)
	r.checkPositive(path{"misconfigured", "fail_after"}, block.Misconfigured.FailAfter)
	r.checkPositive(path{"page_repeat"}, block.PageRepeat)
	r.checkPageConsole(path{"page_console"}, block.PageConsole)
}

// checkPageConsole does not repeat the value, which may contain a login by mistake.
func (r *reader) checkPageConsole(at path, text string) {
	address, err := url.Parse(text)
	switch {
	case text == "":
	case err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Hostname() == "":
		r.reject(at, "want an http or https address, such as https://outbox.example.com")
	case address.User != nil || strings.ContainsAny(text, "?#"):
		r.reject(at, "is in every page; leave out a login, a query and a fragment")
	case address.String() != text:
		r.reject(at, "has a letter that a link cannot have; write it as a browser shows it")
	}
}

// checkConsole refuses to serve other machines without authentication.
func (r *reader) checkConsole(block Console) {
	at := path{"console"}
	authenticates := 0
	for _, is := range []bool{block.Tokens != "", block.OIDC.Issuer != "", block.HasProxy()} {
		if is {
			authenticates++
		}
	}
	if authenticates > 1 {
		r.reject(at, "tokens, oidc and a proxy (trust_proxy, proxy_ca_file) exclude each other; keep one")
	}
	if (block.OIDC.Issuer == "") != (block.OIDC.Client == "") || (block.OIDC.Issuer == "") != (block.OIDC.URL == "") {
		r.reject(at.child("oidc"), "needs issuer, client and url")
	}
	for _, text := range block.TrustProxy {
		if _, err := netip.ParsePrefix(text); err != nil {
			r.reject(at.child("trust_proxy"), "%q is no range of addresses such as 10.0.0.0/8", text)
		}
	}
	if err := block.CheckTLS(); err != nil {
		r.reject(at, "%s", err)
	}
	if err := CheckTraceURL(block.TraceURL); err != nil {
		r.reject(at.child("trace_url"), "%s", err)
	}
	host, _, err := net.SplitHostPort(block.Listen)
	switch {
	case block.Listen == "":
		if !reflect.DeepEqual(block, DefaultConsole()) {
			r.reject(at, "serves nothing without listen; add it, such as 127.0.0.1:9465")
		}
	case err != nil:
		r.reject(at.child("listen"), "want host:port, such as 127.0.0.1:9465")
	case authenticates == 0 && host != "localhost" && !net.ParseIP(host).IsLoopback():
		r.reject(at.child("listen"), "is open to other machines; say who may read with tokens, oidc, trust_proxy or proxy_ca_file, or listen on 127.0.0.1")
	}
}

// HasProxy reports whether a proxy authenticates people.
func (c Console) HasProxy() bool { return len(c.TrustProxy) > 0 || c.ProxyCAFile != "" }

// CheckTLS finds files and names that lack another one. It reads no file.
func (c Console) CheckTLS() error {
	switch {
	case strings.Contains(c.TLS.CertificateFile+c.TLS.KeyFile+c.ProxyCAFile, "\n"):
		return errors.New("TLS takes the paths of its files, not their text: write /path/to/tls.key without ${file:…}")
	case (c.TLS.CertificateFile == "") != (c.TLS.KeyFile == ""):
		return errors.New("TLS needs the file of a certificate and the file of its key")
	case c.ProxyCAFile != "" && c.TLS.CertificateFile == "":
		return errors.New("a proxy shows its certificate over TLS only: give the console a certificate and a key, too")
	case (c.ProxyCAFile == "") != (len(c.ProxyNames) == 0), slices.Contains(c.ProxyNames, ""):
		return errors.New("a proxy's authority and the proxy's names need each other, because the authority may sign the certificates of other programs, too")
	}
	return nil
}

// CheckTraceURL accepts "". Its errors do not repeat the URL.
func CheckTraceURL(text string) error {
	address, err := url.Parse(strings.ReplaceAll(text, "{trace_id}", ""))
	if text != "" && (err != nil || address.Scheme != "https" && address.Scheme != "http" || address.Host == "" || !strings.Contains(text, "{trace_id}")) {
		return errors.New("want an http or https address with {trace_id} in it, such as https://traces.example.com/trace/{trace_id}")
	}
	if text != "" && address.User != nil {
		return errors.New("has a login, and every reader of the console sees this address; leave the login out")
	}
	return nil
}

const maxHeartbeat = 30 * time.Second

// checkWorker leaves time for one lost heartbeat: a worker stops sending after two thirds of its lease.
func (r *reader) checkWorker(block Worker) {
	at := path{"worker"}
	r.checkPositive(at.child("heartbeat"), block.Heartbeat)
	if block.Heartbeat > maxHeartbeat {
		r.reject(at.child("heartbeat"), "must be at most %s: people are to see within a minute whether a worker lives", maxHeartbeat)
	}
	r.checkPositive(at.child("shutdown_timeout"), block.ShutdownTimeout)
	if block.Lease/3 < block.Heartbeat {
		r.reject(at.child("lease"), "must be at least three times heartbeat, so that one late heartbeat is not death")
	}
}

func (r *reader) checkPositive(at path, duration time.Duration) {
	if duration <= 0 {
		r.reject(at, "must be longer than 0")
	}
}

// maxCount is above any sensible setting, and fits the memory and the columns.
const maxCount = 10_000

func (r *reader) checkCount(at path, count int) {
	if count < 1 {
		r.reject(at, "must be at least 1")
	}
	if count > maxCount {
		r.reject(at, "must be at most %d", maxCount)
	}
}

func (r *reader) checkBreaker(at path, block breakerBlock) {
	if !(block.FailureRate >= 0.01 && block.FailureRate <= 1) { // this form refuses NaN, too
		r.reject(at.child("failure_rate"), "want a share of the intents, from 0.01 to 1")
	}
	r.checkPositive(at.child("window"), block.Window)
	if block.MinimumIntents < 1 || block.MinimumIntents > 1000 { // a window keeps at most 1024 samples
		r.reject(at.child("minimum_intents"), "want a number from 1 to 1000")
	}
	r.checkCount(at.child("consecutive_failures"), block.ConsecutiveFailures)
	r.checkPositive(at.child("cool_down"), block.CoolDown)
}

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

func (r *reader) checkProvider(at path, block providerBlock) {
	if name := at[len(at)-1]; name == "" || strings.Contains(name, "/") {
		r.reject(at, "a provider's name is the part of a tool name before its first slash; it cannot be empty or hold a slash")
	}
	if len(block.Tools) == 0 {
		r.reject(at.child("tools"), "declare at least one tool")
	}
	r.checkCount(at.child("concurrency"), block.Concurrency)
	r.checkPositive(at.child("timeout"), block.Timeout)
	r.checkBreaker(at.child("circuit_breaker"), block.CircuitBreaker)
	if name := block.Idempotency.Namespace; name != "" && !namespacePattern.MatchString(name) {
		r.reject(at.child("idempotency").child("namespace"), "want 1 to 63 letters, digits, dots, dashes and underscores, the first of them a letter or a digit")
	}
	if block.RateLimit != nil {
		at, limit := at.child("rate_limit"), block.RateLimit
		if limit.PerSecond < 0.00001 || limit.PerSecond > 1_000_000 { // the time between two requests must fit a duration
			r.reject(at.child("per_second"), "want requests a second, from 0.00001 (about one a day) to 1000000")
		}
		if limit.Burst != nil {
			r.checkCount(at.child("burst"), *limit.Burst)
		}
	}
}

func join[S ~string](names []S) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}

func (r *reader) checkTool(at path, block toolBlock) {
	if at[len(at)-1] == "" {
		r.reject(at, "an operation's name is the part of a tool name after its first slash; it cannot be empty")
	}
	r.checkIdempotency(at.child("idempotency"), block.Idempotency)
	r.checkRetry(at.child("retry"), block.Retry)
	r.checkFailure(at, block)
	if block.Idempotency.Class == dispatch.ReadOnly {
		r.checkEffectless(at, block)
		return
	}
	if block.Lookup != nil && block.Lookup.Margin != nil && *block.Lookup.Margin < 0 {
		r.reject(at.child("lookup").child("margin"), "must not be negative")
	}
	r.checkUndo(at, block)
}

func (r *reader) checkEffectless(at path, block toolBlock) {
	for name, written := range map[string]bool{
		"lookup":          block.Lookup != nil,
		"compensate_with": block.CompensateWith != nil,
		"compensation":    block.Compensation != "",
		"reversal_window": block.ReversalWindow != nil,
	} {
		if written {
			r.reject(at.child(name), "a read_only tool has no effect to look up or to undo; leave it out")
		}
	}
}

func (r *reader) checkIdempotency(at path, block idempotencyBlock) {
	switch {
	case !isClass(block.Class):
		r.reject(at.child("class"), "say what repeating the call does: %s", join(dispatch.Classes()))
		return
	case block.Class != dispatch.KeyIdempotent:
		if block.TTL != 0 {
			r.reject(at.child("ttl"), "has a meaning only for key_idempotent; leave it out")
		}
		if block.Scope != "" {
			r.reject(at.child("scope"), "has a meaning only for key_idempotent; leave it out")
		}
		return
	case block.TTL <= 0:
		r.reject(at.child("ttl"), "say how long the provider remembers a key, such as 24h")
	case block.TTL > maxKeyTTL:
		r.reject(at.child("ttl"), "is longer than ten years; write what the provider promises")
	}
	if block.Scope == "" {
		r.reject(at.child("scope"), "say within what the provider tells keys apart, such as account")
	}
}

// maxKeyTTL finds typing mistakes: no provider promises to remember keys for longer.
const maxKeyTTL = 3650 * duration.Day

func (r *reader) checkRetry(at path, block retryBlock) {
	r.checkCount(at.child("max_attempts"), block.MaxAttempts)
	r.checkPositive(at.child("base"), block.Base)
	if block.Cap < block.Base {
		r.reject(at.child("cap"), "must not be shorter than base")
	}
	r.checkPositive(at.child("max_wait"), block.MaxWait)
}

func isClass(class dispatch.Class) bool {
	return slices.Contains(dispatch.Classes(), class)
}

const (
	compensate = "compensate"
	deadLetter = "dead_letter"

	opensIncident = "incident"
	accepted      = "accept"

	nothingToUndo = "none"
)

// checkFailure checks the consequences of failures, refusals and replays.
func (r *reader) checkFailure(at path, block toolBlock) {
	if block.OnFailure != compensate && block.OnFailure != deadLetter {
		r.reject(at.child("on_failure"), "say what follows a failure: %s or %s", compensate, deadLetter)
	}
	if block.OnRefused != compensate && block.OnRefused != deadLetter {
		r.reject(at.child("on_refused"), "say what follows a refusal: %s or %s", deadLetter, compensate)
	}
	switch {
	case block.OnFirstReplay == "" || block.OnFirstReplay == accepted:
	case block.OnFirstReplay != opensIncident:
		r.reject(at.child("on_first_replay"), "say what follows a replay for an intent's first attempt: %s or %s", opensIncident, accepted)
	case block.Idempotency.Class != dispatch.KeyIdempotent:
		r.reject(at.child("on_first_replay"), "only a key_idempotent tool recognises a key; leave it out")
	}
}

// checkUndo checks the fields that say how an effect is undone.
func (r *reader) checkUndo(at path, block toolBlock) {
	if block.CompensateWith != nil {
		r.checkCompensation(at.child("compensate_with"), *block.CompensateWith)
	}
	if block.ReversalWindow != nil {
		r.checkPositive(at.child("reversal_window"), *block.ReversalWindow)
	}
	switch {
	case block.Compensation == "":
	case block.Compensation != nothingToUndo:
		r.reject(at.child("compensation"), "can only be none: there is nothing to undo; what undoes the effect stands in compensate_with")
	case block.CompensateWith != nil:
		r.reject(at.child("compensation"), "says that there is nothing to undo, but compensate_with says how it is undone; leave out one of the two")
	case block.ReversalWindow != nil:
		r.reject(at.child("reversal_window"), "has no meaning where there is nothing to undo; leave it out")
	}
}

func (r *reader) checkCompensation(at path, block compensationBlock) {
	if block.Tool == "" {
		r.reject(at.child("tool"), "say which tool undoes this one, as provider/operation")
	}
	if block.Payload == "" {
		return
	}
	at = at.child("payload")
	expression, err := jq.Compile(block.Payload)
	if err != nil {
		r.reject(at, "%s", r.secrets.redact(err.Error()))
		return
	}
	for _, name := range expression.Reads() { // an unknown name would always be null
		if !slices.Contains(dispatch.ReversalInput, name) {
			r.reject(at, "%s", r.secrets.redact(fmt.Sprintf("there is no .%s; known here: .%s", name, strings.Join(dispatch.ReversalInput, ", ."))))
			return
		}
	}
}

// references checks the names by which one part of the file refers to another. The check needs the whole file.
type references struct {
	*reader
	providers map[string]dispatch.Provider
	tools     map[string]dispatch.Policy // by full name
}

func (r *reader) checkReferences(providers []dispatch.Provider) {
	refs := references{reader: r, providers: make(map[string]dispatch.Provider, len(providers)), tools: map[string]dispatch.Policy{}}
	for _, provider := range providers {
		refs.providers[provider.Name] = provider
		for operation, policy := range provider.Tools {
			refs.tools[fullName(provider.Name, operation)] = policy
		}
	}
	for _, provider := range providers {
		at := path{"providers", provider.Name}
		refs.checkFallback(at.child("fallback"), provider)
		for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
			at, policy := at.child("tools").child(operation), provider.Tools[operation]
			refs.checkLookup(at.child("lookup").child("tool"), provider, policy.Lookup)
			refs.checkReversal(at.child("compensate_with").child("tool"), fullName(provider.Name, operation))
		}
	}
}

func (r references) checkLookup(at path, provider dispatch.Provider, lookup *dispatch.Lookup) {
	if lookup == nil {
		return
	}
	var readOnly []string
	for operation, policy := range provider.Tools {
		if policy.Class == dispatch.ReadOnly {
			readOnly = append(readOnly, operation)
		}
	}
	r.checkOneOf(at, lookup.Operation, readOnly, "must name a read_only operation of this provider")
}

func (r references) checkOneOf(at path, name string, allowed []string, rule string) bool {
	if slices.Contains(allowed, name) {
		return true
	}
	slices.Sort(allowed)
	r.reject(at, "%s; %s", rule, spelling.Suggest(name, allowed))
	return false
}

// checkReversal makes sure that the undo is another tool, that it acts, that it can be repeated or looked up, and
// that it does not lead to this tool again.
func (r references) checkReversal(at path, own string) {
	policy := r.tools[own]
	undo := policy.Reversal.Tool
	if undo == "" || policy.Class == dispatch.ReadOnly || !r.checkOneOf(at, undo, r.actingBesides(own), "must name another tool of this file that acts, as provider/operation") {
		return
	}
	if policy = r.tools[undo]; policy.Class == dispatch.NonIdempotent && policy.Lookup == nil {
		r.reject(at, "%s is non_idempotent without a lookup, so nothing would settle an undo whose answer got lost; give it a lookup, or another class", undo)
	}
	if circle := r.circleFrom(own); len(circle) > 0 && own == slices.Min(circle) {
		r.reject(at, "tools undo each other in a circle: %s -> %s; end it with compensation: none, because an undo is never undone", strings.Join(circle, " -> "), own)
	}
}

func (r references) actingBesides(own string) []string {
	var acting []string
	for name, policy := range r.tools {
		if name != own && policy.Class != dispatch.ReadOnly {
			acting = append(acting, name)
		}
	}
	return acting
}

// circleFrom follows the undos from own. It returns nil unless they lead to own again.
func (r references) circleFrom(own string) []string {
	circle := []string{own}
	for next := r.tools[own].Reversal.Tool; next != own; next = r.tools[next].Reversal.Tool {
		if next == "" || slices.Contains(circle, next) {
			return nil
		}
		circle = append(circle, next)
	}
	return circle
}

func (r references) checkFallback(at path, provider dispatch.Provider) {
	if provider.Fallback == "" {
		return
	}
	others := maps.Clone(r.providers)
	delete(others, provider.Name)
	fallback, known := others[provider.Fallback]
	switch {
	case !known:
		r.reject(at, "must name another provider of this file; %s", spelling.Suggest(provider.Fallback, slices.Sorted(maps.Keys(others))))
	case fallback.Fallback != "":
		r.reject(at, "a fallback has no fallback itself; leave out one of the two")
	default:
		for _, operation := range slices.Sorted(maps.Keys(provider.Tools)) {
			r.checkSubstitute(at, operation, provider.Tools[operation], fallback.Tools)
		}
	}
}

// checkSubstitute makes sure that the fallback can serve the provider's intents, and can look up and undo those
// that it served.
func (r references) checkSubstitute(at path, operation string, own dispatch.Policy, fallback map[string]dispatch.Policy) {
	substitute, declared := fallback[operation]
	switch {
	case !declared:
		r.reject(at, "the fallback has no operation %q, as this provider has", operation)
	case !isClass(own.Class) || !isClass(substitute.Class):
		// Already reported at the class.
	case substitute.Class != own.Class:
		r.reject(at, "the fallback's %q must be %s, as it is here", operation, own.Class)
	case own.Lookup != nil && substitute.Lookup == nil:
		r.reject(at, "the fallback's %q must have a lookup, as it has here: it is asked about what it served", operation)
	case own.Reversal.Tool != "" && substitute.Reversal.Tool == "":
		r.reject(at, "the fallback's %q must have compensate_with, as it has here: what it did is undone there", operation)
	}
}

// leastRetention protects intents of unfinished runs from a typing mistake.
const leastRetention = time.Hour

func (r *reader) checkRetention(at path, retention time.Duration) {
	if retention < leastRetention {
		r.reject(at, "must be at least 1h")
	}
}

// retain notes a tool's own retention. It must be at least the key's ttl, because the outbox must remember a key
// for as long as the provider does.
func (r *reader) retain(at path, name string, tool toolBlock, retention Retention) {
	ttl := tool.Idempotency.TTL
	if ttl > maxKeyTTL {
		ttl = 0 // already reported
	}
	if tool.Retention == nil {
		if inherited := retention.Default; inherited > 0 && inherited < ttl {
			r.reject(at.child("idempotency").child("ttl"), "is longer than the retention of %s; give this tool a retention of at least %s", duration.Format(inherited), duration.Format(ttl))
		}
		return
	}
	retention.Tools[name] = *tool.Retention
	r.checkRetention(at.child("retention"), *tool.Retention)
	if *tool.Retention >= leastRetention && *tool.Retention < ttl {
		r.reject(at.child("retention"), "is shorter than idempotency.ttl; write at least %s", duration.Format(ttl))
	}
}

func (r *reader) match(at path, block matchBlock) incident.Match {
	if len(block.Kinds) > 0 && len(block.Severities) > 0 {
		r.reject(at.child("severities"), "name kinds or severities; a kind has one severity")
	}
	reject(r, at.child("kinds"), block.Kinds, incident.Kinds())
	reject(r, at.child("severities"), block.Severities, incident.Severities())
	match := incident.Match{Kinds: given(block.Kinds), Providers: given(block.Providers), Tools: given(block.Tools)}
	if len(block.Severities) > 0 {
		match.Kinds = incident.Kinds(block.Severities...)
	}
	return match
}

// given returns nil for an empty list, as for a list that was left out.
func given[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// reject reports each unknown value.
func reject[T ~string](r *reader, at path, values, known []T) {
	for i, value := range values {
		if !slices.Contains(known, value) {
			r.reject(at.child(strconv.Itoa(i)), "want one of %s", join(known))
		}
	}
}

// Unrouted names the incidents that no channel gets. Each is a kind, or "KIND of PROVIDER, PROVIDER" if channels
// get the kind of other providers. Without channels it returns nil.
func (c *Config) Unrouted(kinds ...incident.Kind) []string {
	var unrouted []string
	for _, kind := range kinds {
		if len(c.Pages) == 0 || slices.ContainsFunc(c.Pages, func(page Page) bool {
			return page.gets(kind) && page.Match.Providers == nil && page.Match.Tools == nil
		}) {
			continue
		}
		var missed []string
		for _, provider := range c.Providers {
			if !c.routed(kind, provider.Name) {
				missed = append(missed, provider.Name)
			}
		}
		switch {
		case len(missed) == len(c.Providers):
			unrouted = append(unrouted, string(kind))
		case kind == incident.UnconfiguredProvider:
			unrouted = append(unrouted, string(kind)+" of providers that this file does not name")
		case len(missed) > 0:
			unrouted = append(unrouted, string(kind)+" of "+strings.Join(missed, ", "))
		}
	}
	return unrouted
}

func (p Page) gets(kind incident.Kind) bool { return slices.Contains(p.Match.Chosen(), kind) }

// routed reports whether channels get all incidents of the kind of this provider. An unknown operation is in no
// list of tools, so it needs a channel without such a list.
func (c *Config) routed(kind incident.Kind, provider string) bool {
	var tools []string
	for _, page := range c.Pages {
		if !page.gets(kind) || page.Match.Providers != nil && !slices.Contains(page.Match.Providers, provider) {
			continue
		}
		if page.Match.Tools == nil {
			return true
		}
		tools = append(tools, page.Match.Tools...)
	}
	for tool := range c.Tools() {
		if name, _, _ := strings.Cut(tool, "/"); name == provider && !slices.Contains(tools, tool) {
			return false
		}
	}
	return kind != incident.UnknownOperation
}

// Unmatched names the providers and tools of a match that this file does not configure. Either another daemon of
// the fleet configures them, or the name is a typing mistake, and the channel gets nothing.
func (c *Config) Unmatched() []string {
	known := map[string]bool{}
	for _, provider := range c.Providers {
		known[provider.Name] = true
	}
	for tool := range c.Tools() {
		known[tool] = true
	}
	var unmatched []string
	for _, page := range c.Pages {
		for _, name := range slices.Concat(page.Match.Providers, page.Match.Tools) {
			if !known[name] {
				unmatched = append(unmatched, page.Name+": "+name)
			}
		}
	}
	return unmatched
}
