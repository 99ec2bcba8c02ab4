package operator

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/internal/spelling"
)

// Overview is a summary of the outbox's state.
type Overview struct {
	Providers  []ProviderOverview `json:"providers"`
	Workers    []Worker           `json:"workers"`
	Collisions int64              `json:"idempotency_key_collisions"` // must always be zero
	Attention
}

// Living counts the workers whose last heartbeat is not too old.
func (o Overview) Living() (living int) {
	for _, worker := range o.Workers {
		if worker.Lives {
			living++
		}
	}
	return living
}

// Attention counts the runs that are being rolled back, and the sagas and incidents that need a human. Each
// count stops at CountLimit.
type Attention struct {
	SagasBegun    int64 `json:"sagas_begun"`
	SagasFailed   int64 `json:"sagas_failed"`   // failed sagas with an incident that is not resolved
	IncidentsOpen int64 `json:"incidents_open"` // incidents that are neither acknowledged nor resolved
}

// ProviderOverview says whether rows are sent to a provider, and counts its rows that are not settled. Pending and Due
// stop counting at CountLimit. An operation that is shut has an overview of its own, of the rows that wait for it.
type ProviderOverview struct {
	Provider            string   `json:"provider"` // or provider/operation
	Paused              bool     `json:"paused"`
	Breaker             *string  `json:"circuit_breaker"`                  // closed, open or half_open; nil: no worker has ever had the provider
	OpenForSeconds      *float64 `json:"circuit_breaker_open_for_seconds"` // until a probe, or, if half open, until another worker may probe; nil if closed
	Pending             int64    `json:"pending"`
	Due                 int64    `json:"due"`
	InProgress          int64    `json:"in_progress"`
	OldestDueAgeSeconds float64  `json:"oldest_due_age_seconds"`

	// OldestInProgressAgeSeconds is the age of the oldest claim. If it is far over the provider's timeout, the
	// claim's worker is dead and no living worker serves the provider.
	OldestInProgressAgeSeconds float64 `json:"oldest_in_progress_age_seconds"`

	Served bool `json:"served"` // a living worker serves it
}

// late is how long the oldest due row may have been due before a person should look at its provider: a healthy lane
// claims a row within a second. A claim may be ten times as old.
const late = 30 * time.Second

// Why says why a person should look at the provider. It is empty if nothing is wrong. It contains no age, so that the text
// stays the same while the reason does.
func (p ProviderOverview) Why() string {
	switch {
	case p.Paused:
		return "it is paused"
	case !p.Served && p.Pending+p.InProgress > 0:
		return "no living worker serves it"
	case p.Breaker != nil && *p.Breaker == "open":
		return "its circuit breaker is open"
	case p.Breaker != nil && *p.Breaker == "half_open":
		return "its circuit breaker lets one row try"
	case p.OldestInProgressAgeSeconds > 10*late.Seconds():
		return "an attempt does not end: its worker hangs, or is gone"
	case p.OldestDueAgeSeconds > late.Seconds():
		return "rows are due and not taken: its workers are at their limits, or stand still"
	}
	return ""
}

// silence is how old the last heartbeat of a living worker may be. Workers send one at least every 30 s. The
// database does not know their lease.
const silence = time.Minute

// CountLimit bounds each count, so that an overview stays cheap during an incident.
const CountLimit = 10_000

// Worker is a process that holds the right to claim.
type Worker struct {
	WorkerID  string    `json:"worker_id"`
	StartedAt time.Time `json:"started_at"`
	BeatAt    time.Time `json:"beat_at"`
	Providers []string  `json:"providers"`
	Tools     []string  `json:"tools"`
	// Fingerprints holds a keyed hash of the configuration of each of Providers. They can only be compared with each other.
	Fingerprints []string `json:"fingerprints"`
	// Configuration is the fingerprint of the whole configuration. It differs between workers that serve different providers.
	Configuration string `json:"configuration"`
	Lives         bool   `json:"lives"` // its last heartbeat is not too old
}

// Version is one configuration of a provider, or one whole configuration.
type Version struct {
	Fingerprint string   `json:"fingerprint"`
	Workers     []string `json:"workers"` // the workers that have it, the oldest first
}

// Difference says that workers have several configurations of a provider. Provider is empty if workers have the same
// providers with the same blocks, but other settings differ.
type Difference struct {
	Provider string    `json:"provider"`
	Versions []Version `json:"versions"` // the version of the oldest worker is the first
}

// Differences compares the configurations of workers. It returns the differences in the alphabetical order of the
// providers. During a rolling update there are some.
func Differences(workers []Worker) []Difference {
	ofProviders, whole := versions{}, versions{}
	for _, worker := range workers {
		var blocks []string // the providers that it serves, with their fingerprints
		for i, provider := range worker.Providers[:min(len(worker.Providers), len(worker.Fingerprints))] {
			ofProviders.add(provider, worker.Fingerprints[i], worker)
			blocks = append(blocks, fmt.Sprintf("%q %q", provider, worker.Fingerprints[i]))
		}
		if worker.Configuration != "" {
			slices.Sort(blocks) // they are in the order of the worker's file
			whole.add(strings.Join(blocks, ","), worker.Configuration, worker)
		}
	}
	differences := []Difference{}
	for _, alike := range slices.Sorted(maps.Keys(whole)) {
		if len(whole[alike]) > 1 {
			differences = append(differences, Difference{"", whole[alike]})
		}
	}
	for _, provider := range slices.Sorted(maps.Keys(ofProviders)) {
		if len(ofProviders[provider]) > 1 {
			differences = append(differences, Difference{provider, ofProviders[provider]})
		}
	}
	return differences
}

type versions map[string][]Version

func (v versions) add(of, fingerprint string, worker Worker) {
	at := slices.IndexFunc(v[of], func(known Version) bool { return known.Fingerprint == fingerprint })
	if at < 0 {
		at, v[of] = len(v[of]), append(v[of], Version{Fingerprint: fingerprint})
	}
	v[of][at].Workers = append(v[of][at].Workers, worker.WorkerID)
}

// Overview reads the state of the outbox. It lists the providers that a worker has or had in its configuration, those
// with waiting rows, and the operations that are shut.
func (c *Console) Overview(ctx context.Context) (Overview, error) {
	var overview Overview
	var err error
	if overview.Providers, err = collect(ctx, c.conn, "read the overview", pgx.RowToStructByPos[ProviderOverview], providersSQL, CountLimit, silence.Seconds()); err != nil {
		return overview, err
	}
	if overview.Workers, err = c.Workers(ctx); err != nil {
		return overview, err
	}
	if err = c.conn.QueryRow(ctx, `SELECT last_value FROM outbox.collisions`).Scan(&overview.Collisions); err != nil {
		return overview, fmt.Errorf("count collisions: %w", err)
	}
	at := &overview.Attention
	if err = c.conn.QueryRow(ctx, attentionSQL, CountLimit).Scan(&at.SagasBegun, &at.SagasFailed, &at.IncidentsOpen); err != nil {
		return overview, fmt.Errorf("count sagas and incidents: %w", err)
	}
	return overview, nil
}

// Workers lists the processes that hold the right to claim, the oldest first.
func (c *Console) Workers(ctx context.Context) ([]Worker, error) {
	return collect(ctx, c.conn, "list workers", pgx.RowToStructByPos[Worker], `SELECT worker_id::text, started_at, beat_at, providers, tools, fingerprints, configuration,
		beat_at >= now() - make_interval(secs => $1::float8) FROM outbox.worker ORDER BY started_at`, silence.Seconds())
}

//go:embed sql/tenants.sql
var tenantsSQL string

// Tenant is a tenant that the schema's owner has made: its share of the work, its limits, and its present use of them.
type Tenant struct {
	Name      string `json:"tenant"`
	Role      string `json:"role"`
	Namespace string `json:"namespace"` // empty: the namespace of the provider or of the outbox
	Weight    int    `json:"weight"`

	// A limit is nil if there is none.
	MaxDue      *int `json:"max_due"`
	MaxBytes    *int `json:"max_bytes"`
	MaxRate     *int `json:"max_rate"`
	MaxInFlight *int `json:"max_in_flight"` // at each provider

	Due      int `json:"due"`       // stops counting at TenantLook
	Queued   int `json:"queued"`    // stops counting at TenantLook
	Bytes    int `json:"bytes"`     // of the rows that Queued counted
	InFlight int `json:"in_flight"` // at all providers
	// InFlightBounded says that more rows may be claimed, of all tenants together, than were looked at.
	InFlightBounded bool `json:"in_flight_bounded"`
}

const (
	// TenantLook bounds how many queued rows of each tenant are looked at.
	TenantLook = 1000
	// flightLook bounds how many claimed rows of all tenants together are looked at.
	flightLook = 10_000
)

// Tenants lists tenants whose names sort after the given one, in the order of the names.
func (c *Console) Tenants(ctx context.Context, after string, limit int) ([]Tenant, error) {
	return collect(ctx, c.conn, "list tenants", pgx.RowToStructByPos[Tenant], tenantsSQL, TenantLook, flightLook, after, limit)
}

// Operation records that an operator changed a provider or a run, or looked at a payload.
type Operation struct {
	OperationID int64     `json:"operation_id"`
	DoneAt      time.Time `json:"done_at"`
	Operator    string    `json:"operator"` // the name that the operator gave
	Login       string    `json:"login"`    // the role that the database saw
	Action      string    `json:"action"`
	Provider    *string   `json:"provider"`
	AgentRunID  *string   `json:"agent_run_id"`
	Reason      string    `json:"reason"`
}

// Operations lists operations with numbers below the given one, the newest first. 0 begins with the newest of all.
func (c *Console) Operations(ctx context.Context, below int64, limit int) ([]Operation, error) {
	return collect(ctx, c.conn, "list operations", pgx.RowToStructByPos[Operation], `SELECT id, done_at, operator, login, action, provider, agent_run_id, reason FROM outbox.operation
		WHERE ($1::bigint = 0 OR id < $1::bigint) ORDER BY id DESC LIMIT $2::int`, below, limit)
}

const providersSQL = `
	WITH RECURSIVE queued AS ( -- one index look a provider, however many rows it has
		(SELECT provider FROM outbox.queue ORDER BY provider LIMIT 1)
		UNION ALL
		SELECT (SELECT q.provider FROM outbox.queue q WHERE q.provider > queued.provider ORDER BY q.provider LIMIT 1)
		FROM queued WHERE provider IS NOT NULL)
	SELECT n.name, coalesce(p.paused, false),
		coalesce(p.state, t.state),
		CASE WHEN coalesce(p.state, t.state) <> 'closed' THEN greatest(0, extract(epoch FROM coalesce(p.open_until, t.open_until) - now()))::float8 END,
		(SELECT count(*) FROM (SELECT FROM outbox.queue WHERE provider = n.name LIMIT $1) q),
		(SELECT count(*) FROM (SELECT FROM outbox.queued_tenants(n.name) AS t (tenant) CROSS JOIN LATERAL (
			SELECT FROM outbox.queue WHERE provider = n.name AND tenant = t.tenant AND next_attempt_at <= now() LIMIT $1) r LIMIT $1) q),
		(SELECT coalesce(sum(pg_catalog.cardinality(intent_ids)), 0)::bigint FROM outbox.claim WHERE provider = n.name),
		coalesce((SELECT extract(epoch FROM now() - min(next_attempt_at)) FROM outbox.queued_tenants(n.name) AS t (tenant) CROSS JOIN LATERAL (
			SELECT next_attempt_at FROM outbox.queue WHERE provider = n.name AND tenant = t.tenant AND next_attempt_at <= now()
			ORDER BY next_attempt_at LIMIT 1) r), 0)::float8,
		coalesce((SELECT extract(epoch FROM now() - min(claimed_at)) FROM outbox.claim WHERE provider = n.name), 0)::float8,
		EXISTS (SELECT FROM outbox.worker w WHERE n.name = ANY (w.providers OPERATOR(pg_catalog.||) w.tools) AND w.beat_at >= now() - make_interval(secs => $2::float8))
	FROM (SELECT name FROM outbox.provider UNION SELECT name FROM outbox.tool WHERE state <> 'closed'
		UNION (SELECT provider FROM queued WHERE provider IS NOT NULL LIMIT 1000)) n -- agents make names up
	LEFT JOIN outbox.provider p USING (name) LEFT JOIN outbox.tool t USING (name) ORDER BY n.name`

// attentionSQL finds failed sagas by the kinds of incidents that they have. Most sagas ended well.
const attentionSQL = `
	SELECT (SELECT count(*) FROM (SELECT FROM outbox.saga WHERE state = 'begun' LIMIT $1) s),
		(SELECT pg_catalog.count(DISTINCT agent_run_id) FROM (SELECT agent_run_id FROM outbox.incident i JOIN outbox.saga s USING (agent_run_id)
			WHERE i.resolved_at IS NULL AND i.kind = ANY (ARRAY['compensation_failed', 'reversal_window_expired', 'saga_stalled'])
				AND s.state = 'compensation_failed' LIMIT $1) f),
		(SELECT count(*) FROM (SELECT FROM outbox.incident WHERE acknowledged_at IS NULL AND resolved_at IS NULL LIMIT $1) i)`

//go:embed sql/providers.sql
var gatesSQL string

// UnknownProviderError says that no worker has announced a provider of this name. Known lists the announced ones.
type UnknownProviderError struct {
	Name  string
	Known []string
}

func (e *UnknownProviderError) Error() string {
	return fmt.Sprintf("there is no provider %q; %s", e.Name, spelling.Suggest(e.Name, e.Known))
}

// Provider is the state that all workers share of one provider, or of one operation that is shut.
type Provider struct {
	Provider      string     `json:"provider"` // or provider/operation
	Paused        bool       `json:"paused"`
	Breaker       string     `json:"circuit_breaker"`
	BreakerReason *string    `json:"circuit_breaker_reason"` // only while the breaker is not closed
	ShutAt        *time.Time `json:"shut_at"`                // only while the breaker is not closed
	OpenUntil     *time.Time `json:"open_until"`             // only while the breaker is not closed
	ChangedAt     *time.Time `json:"changed_at"`             // when, by whom and why it was last paused or resumed
	ChangedBy     *string    `json:"changed_by"`
	Reason        *string    `json:"reason"`
}

func (p Provider) isShut() bool { return p.Paused || p.Breaker != "closed" }

// Why says why rows are not sent. It is empty if they are. If the end of that state is known, it is OpenUntil.
func (p Provider) Why() string {
	reason := func(of *string) string {
		if of == nil {
			return ""
		}
		return ": " + *of
	}
	switch {
	case p.Paused:
		return p.Provider + " is paused" + reason(p.Reason)
	case p.Breaker == "half_open":
		return p.Provider + ": one row is trying it now" + reason(p.BreakerReason)
	case p.Breaker == "open":
		return p.Provider + ": its circuit breaker is open" + reason(p.BreakerReason)
	}
	return ""
}

// Providers lists the providers that workers have announced, and their operations that are shut, by name.
func (c *Console) Providers(ctx context.Context) ([]Provider, error) { return c.gates(ctx, "") }

// Tools lists the first 1000 of the tools that daemons have announced, by name.
func (c *Console) Tools(ctx context.Context) ([]string, error) {
	return collect(ctx, c.conn, "list tools", pgx.RowTo[string], `SELECT name FROM outbox.tool ORDER BY name LIMIT 1000`)
}

// Provider returns a provider, or an operation that is shut, by its name. It fails with an [*UnknownProviderError].
func (c *Console) Provider(ctx context.Context, name string) (Provider, error) {
	found, err := c.gates(ctx, name)
	switch {
	case err != nil:
		return Provider{}, err
	case len(found) == 0:
		return Provider{}, c.unknownProvider(ctx, name)
	}
	return found[0], nil
}

func (c *Console) unknownProvider(ctx context.Context, name string) error {
	providers, err := c.Providers(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, provider := range providers {
		if !strings.Contains(provider.Provider, "/") {
			known = append(known, provider.Provider)
		}
	}
	return &UnknownProviderError{Name: name, Known: known}
}

func (c *Console) gates(ctx context.Context, name string) ([]Provider, error) {
	return collect(ctx, c.conn, "list providers", pgx.RowToStructByPos[Provider], gatesSQL, name)
}

// Pause keeps all workers from claiming a provider's rows, from its commit on. It reports false if the provider was
// paused already.
func (c *Console) Pause(ctx context.Context, provider string, by Signature) (changed bool, err error) {
	return c.setGate(ctx, provider, true, by)
}

// Resume ends a pause. If a circuit breaker of the provider or of its operations is open, Resume lets one row probe it
// at once. It reports false if there was neither a pause nor an open breaker.
func (c *Console) Resume(ctx context.Context, provider string, by Signature) (changed bool, err error) {
	return c.setGate(ctx, provider, false, by)
}

func (c *Console) setGate(ctx context.Context, provider string, paused bool, by Signature) (changed bool, err error) {
	if err := by.Validate(); err != nil {
		return false, err
	}
	known := true
	err = pgx.BeginTxFunc(ctx, c.conn, pgpool.Transaction, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT outbox.operate_provider($1, $2, $3, $4)`, provider, paused, by.name(), by.Reason).Scan(&changed)
		if err != nil || changed {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.provider WHERE name = $1::text)`, provider).Scan(&known)
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("pause or resume a provider: %w", err)
	case !known:
		return false, c.unknownProvider(ctx, provider)
	}
	return changed, nil
}

//go:embed sql/hour.sql
var hourSQL string

// Minute holds the attempts of a minute by outcome, and the highest age of the oldest due row in it. All of these are
// nil if no daemon wrote the minute.
type Minute struct {
	At        time.Time `json:"at"`
	Completed *int64    `json:"completed"`
	Refused   *int64    `json:"refused"`
	Busy      *int64    `json:"busy"`
	InDoubt   *int64    `json:"in_doubt"`
	Oldest    *float64  `json:"oldest_due_seconds"`
}

// Hour lists the last 60 whole minutes of a provider, or of all providers together if provider is empty.
func (c *Console) Hour(ctx context.Context, provider string) ([]Minute, error) {
	return collect(ctx, c.conn, "read the last hour", pgx.RowToStructByPos[Minute], hourSQL, provider)
}

// Latency holds percentiles of the durations of attempts in the last hour. Each percentile is the upper bound of its
// bucket, so it may be up to twice the measured duration.
type Latency struct {
	Attempts int64   `json:"attempts"`
	P50      float64 `json:"p50_seconds"`
	P95      float64 `json:"p95_seconds"`
	P99      float64 `json:"p99_seconds"`
}

// Latency returns the latency of a provider.
func (c *Console) Latency(ctx context.Context, provider string) (l Latency, err error) {
	counts, err := collect(ctx, c.conn, "read how long attempts took", pgx.RowTo[int64], `SELECT sum(t.rows)::bigint
		FROM outbox.minute m CROSS JOIN LATERAL pg_catalog.unnest(m.took) WITH ORDINALITY AS t (rows, bucket)
		WHERE m.provider = $1::text AND m.at >= now() - interval '61 minutes' GROUP BY t.bucket ORDER BY t.bucket`, provider)
	for _, bucket := range counts {
		l.Attempts += bucket
	}
	at := func(share float64) float64 {
		below := int64(0)
		for i, bucket := range counts {
			if below += bucket; below > 0 && float64(below) >= share*float64(l.Attempts) {
				return 0.001 * math.Pow(2, float64(i))
			}
		}
		return 0
	}
	l.P50, l.P95, l.P99 = at(0.5), at(0.95), at(0.99)
	return l, err
}

// BreakerChange is one change of the circuit breaker of a provider, or of one of its operations.
type BreakerChange struct {
	Name      string    `json:"provider"` // or provider/operation
	State     string    `json:"state"`
	Reason    *string   `json:"reason"`
	ChangedAt time.Time `json:"changed_at"`
}

// BreakerChanges lists the changes of the breakers of a provider and of its operations, the newest first.
func (c *Console) BreakerChanges(ctx context.Context, provider string, limit int) ([]BreakerChange, error) {
	return collect(ctx, c.conn, "list changes of circuit breakers", pgx.RowToStructByPos[BreakerChange], `SELECT name, state, reason, changed_at FROM outbox.breaker_change
		WHERE name = $1::text OR starts_with(name, $1::text || '/'::text) ORDER BY id DESC LIMIT $2::int`, provider, limit)
}
