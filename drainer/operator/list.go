package operator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/migrations"
)

// Filter narrows a listing; what is empty does not.
type Filter struct {
	Status    string
	Dead      bool // only what needs a human: failed, unknown for good, or not undone
	Provider  string
	Tool      string
	Run       string
	Scope     string    // the whole business scope
	Tenant    string    // the name of one
	Reference string    // the provider's, whole
	Error     string    // a part of the last attempt's error
	Since     time.Time // enqueued then or later
	Until     time.Time // enqueued before
	Below     int64     // only intents with a lower number: a page's Below
	Limit     int
}

// Page is a part of a listing, the newest intents first.
type Page struct {
	Intents []Intent
	Below   int64  // where the next page begins; 0: this is the last one
	Bounded bool   // older intents were not looked at, so the page may lack some
	Index   string // the command that makes an index for this filter, where the listing is bounded for the lack of one
}

// MostLooked bounds the rows that a listing looks at, because no index serves most filters.
const MostLooked = 100_000

// IndexReferences is the command after which a provider's reference is found however old its intent is.
const IndexReferences = "drainer migrate references on"

// isDead leaves out an unknown whose lookup may still find the outcome, and
// steps that a saga has settled which ended well. A step that is unknown then
// still has its incident.
const isDead = ` AND status IN ('failed', 'unknown', 'compensation_failed') AND finished_at IS NOT NULL
	AND ((status = 'unknown' AND NOT starts_with(step_id, 'compensate:'::text)) OR NOT EXISTS (
		SELECT FROM outbox.saga g WHERE g.agent_run_id = standing.agent_run_id AND g.state IN ('compensated', 'resolved')))`

const filterSQL = `
	WHERE ($1::text = '' OR status = $1::text) AND ($2::text = '' OR provider = $2::text) AND ($3::text = '' OR agent_run_id = $3::text)
	AND ($4::text = '' OR tool_name = $4::text) AND ($5::text = '' OR strpos(lower(last_error), lower($5::text)) > 0)
	AND ($6::timestamptz IS NULL OR created_at >= $6::timestamptz) AND ($7::timestamptz IS NULL OR created_at < $7::timestamptz)
	AND ($8::bigint = 0 OR intent_id < $8::bigint) AND ($9::bigint = 0 OR intent_id >= $9::bigint)
	AND ($10::text = '' OR business_scope = $10::text) AND ($11::text = '' OR provider_ref = $11::text)
	AND ($12::text = '' OR tenant = (SELECT t.tenant_id FROM outbox.tenant t WHERE t.name = $12::text))`

const listSQL = `SELECT ` + statusColumns + ` FROM outbox.standing` + filterSQL

const newestSQL = ` ORDER BY intent_id DESC LIMIT $13`

// List returns the newest intents first.
func (c *Console) List(ctx context.Context, filter Filter) (Page, error) {
	list, last := statementsOf(filter)
	look := []any{c.look - 1}
	page := Page{}
	if filter.Reference != "" && filter.Run == "" {
		_, indexed, err := migrations.HasReferences(ctx, c.conn)
		switch {
		case err != nil:
			return Page{}, fmt.Errorf("list intents: %w", err)
		case indexed:
			last, look = lookedSQL+`SELECT intent_id FROM outbox.attempt WHERE provider_ref = $4::text AND left(provider_ref, 255) = left($4::text, 255)`+lastSQL, append(look, filter.Reference)
		default:
			page.Index = IndexReferences
		}
	}
	below, lowest, bounded, err := c.bounds(ctx, filter, last, look)
	if err != nil {
		return Page{}, fmt.Errorf("list intents: %w", err)
	}
	page.Intents, err = collect(ctx, c.conn, "list intents", pgx.RowToStructByPos[Intent], list, filter.Status, filter.Provider, filter.Run, filter.Tool, filter.Error,
		orNull(filter.Since), orNull(filter.Until), below, lowest, filter.Scope, filter.Reference, filter.Tenant, filter.Limit+1)
	if err != nil {
		return Page{}, err
	}
	switch {
	case len(page.Intents) > filter.Limit:
		page.Intents = page.Intents[:filter.Limit]
		page.Below = page.Intents[filter.Limit-1].IntentID
	case bounded:
		page.Below, page.Bounded = lowest, true
	}
	if !page.Bounded {
		page.Index = ""
	}
	return page, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Where intents of a status can be, and the last of so many that are there: $1 and $2 are its
// bounds, $3 how many come before it.
const (
	// The newest come first, so that the others need not be looked up.
	amongSQL = `SELECT ` + statusColumns + ` FROM (SELECT DISTINCT intent_id FROM (`
	thoseSQL = `) AS looked WHERE ($8::bigint = 0 OR intent_id < $8::bigint) AND intent_id >= $9::bigint ORDER BY intent_id DESC) AS among
		JOIN outbox.standing USING (intent_id)` + filterSQL

	queuedRow  = `SELECT intent_id FROM outbox.queue`
	claimedRow = `SELECT pg_catalog.unnest(intent_ids) AS intent_id FROM outbox.claim`
	settledRow = `SELECT intent_id FROM outbox.attempt WHERE next_attempt_at IS NULL AND status <> 'completed' AND status = `
	unknownRow = settledRow + `'unknown' UNION ` + queuedRow + ` WHERE lookup UNION ` + claimedRow // or about to be looked up
	deadRow    = settledRow + `ANY (ARRAY['failed', 'unknown', 'compensation_failed'])`

	referredSQL = amongSQL + `SELECT intent_id FROM outbox.attempt WHERE provider_ref = $11::text AND left(provider_ref, 255) = left($11::text, 255)` + thoseSQL

	lookedSQL = `SELECT coalesce((SELECT intent_id FROM (`
	lastSQL   = `) AS looked WHERE ($1::bigint = 0 OR intent_id < $1::bigint) AND intent_id >= $2::bigint
		ORDER BY intent_id DESC OFFSET $3 LIMIT 1), 0)`
)

// statementsByStatus has every status that an index leads to.
var statementsByStatus = map[string]struct{ list, last string }{
	"pending":             {amongSQL + queuedRow + thoseSQL + newestSQL, lookedSQL + queuedRow + lastSQL},
	"in_progress":         {amongSQL + claimedRow + thoseSQL + newestSQL, lookedSQL + claimedRow + lastSQL},
	"unknown":             {amongSQL + unknownRow + thoseSQL + newestSQL, lookedSQL + unknownRow + lastSQL},
	"failed":              {amongSQL + settledRow + `'failed'` + thoseSQL + newestSQL, lookedSQL + settledRow + `'failed'` + lastSQL},
	"cancelled":           {amongSQL + settledRow + `'cancelled'` + thoseSQL + newestSQL, lookedSQL + settledRow + `'cancelled'` + lastSQL},
	"compensated":         {amongSQL + settledRow + `'compensated'` + thoseSQL + newestSQL, lookedSQL + settledRow + `'compensated'` + lastSQL},
	"compensation_failed": {amongSQL + settledRow + `'compensation_failed'` + thoseSQL + newestSQL, lookedSQL + settledRow + `'compensation_failed'` + lastSQL},
}

// statementsOf lists the intents of a filter, and finds the last one to look at. An index leads
// to every status but completed.
func statementsOf(filter Filter) (list, last string) {
	switch {
	case filter.Run != "" && filter.Dead: // the primary key begins with the run
		return listSQL + isDead + newestSQL, newestOfAllSQL
	case filter.Run != "":
		return listSQL + newestSQL, newestOfAllSQL
	case filter.Reference != "" && filter.Dead: // a look at each attempt in turn is cheaper than to look up those of each intent
		return referredSQL + isDead + newestSQL, newestOfAllSQL
	case filter.Reference != "":
		return referredSQL + newestSQL, newestOfAllSQL
	case filter.Dead:
		return amongSQL + deadRow + thoseSQL + isDead + newestSQL, lookedSQL + deadRow + lastSQL
	}
	if found, indexed := statementsByStatus[filter.Status]; indexed {
		return found.list, found.last
	}
	if filter.Error != "" { // as with a reference
		return amongSQL + `SELECT intent_id FROM outbox.attempt WHERE strpos(lower(error), lower($5::text)) > 0` + thoseSQL + newestSQL, newestOfAllSQL
	}
	return listSQL + newestSQL, newestOfAllSQL
}

// slack is by how many numbers the order of intents may differ from that of their times.
const slack = 1000

// bounds are the numbers between which a listing looks. Times become numbers, because intents
// are numbered as they are enqueued. bounded says that MostLooked set the lower one.
func (c *Console) bounds(ctx context.Context, filter Filter, lastSQL string, look []any) (below, lowest int64, bounded bool, err error) {
	below = filter.Below
	if filter.Run != "" { // a run is small
		return below, 0, false, nil
	}
	if !filter.Until.IsZero() {
		until, err := c.firstAt(ctx, filter.Until)
		if err != nil {
			return 0, 0, false, err
		}
		if below == 0 || until+slack < below {
			below = until + slack
		}
	}
	if !filter.Since.IsZero() {
		since, err := c.firstAt(ctx, filter.Since)
		if err != nil {
			return 0, 0, false, err
		}
		lowest = max(1, since-slack)
	}
	nothing := Filter{Below: filter.Below, Limit: filter.Limit}
	if filter == nothing {
		return below, 0, false, nil
	}
	var last int64
	err = c.conn.QueryRow(ctx, lastSQL, append([]any{below, lowest}, look...)...).Scan(&last)
	if err != nil || last == 0 {
		return below, lowest, false, err
	}
	return below, last, true, nil
}

// firstAt finds the lowest number of an intent enqueued then or later, with a look a bit: the
// index on created_at is too coarse to order by.
func (c *Console) firstAt(ctx context.Context, at time.Time) (int64, error) {
	var low, high int64
	if err := c.conn.QueryRow(ctx, `SELECT coalesce(min(id), 0), coalesce(max(id), 0) + 1 FROM outbox.intent`).Scan(&low, &high); err != nil {
		return 0, err
	}
	for low < high {
		middle := low + (high-low)/2
		var id int64
		var early bool
		err := c.conn.QueryRow(ctx, `SELECT id, created_at < $2::timestamptz FROM outbox.intent WHERE id >= $1::bigint ORDER BY id LIMIT 1`,
			middle, at).Scan(&id, &early)
		switch {
		case err != nil:
			return 0, err
		case early:
			low = id + 1
		default:
			high = middle
		}
	}
	return low, nil
}

// Found lists the runs and intents that a text of a log or of a provider leads to.
type Found struct {
	Runs    []string `json:"runs"`            // whose ids begin with it, in the order of their ids
	Intents []Intent `json:"intents"`         // it is their number, key, business scope or provider's reference; the newest first
	Bounded bool     `json:"bounded"`         // older intents were not looked at
	More    bool     `json:"more"`            // there is more than the limit
	Index   string   `json:"index,omitempty"` // the command that makes an index of references; empty: there is one, or it is not needed
}

const (
	// One index look a run, however many intents it has.
	runsFromSQL = `WITH RECURSIVE found AS (
			(SELECT agent_run_id FROM outbox.intent WHERE agent_run_id >= $1::text ORDER BY agent_run_id LIMIT 1)
			UNION ALL
			SELECT (SELECT i.agent_run_id FROM outbox.intent i WHERE i.agent_run_id > found.agent_run_id ORDER BY i.agent_run_id LIMIT 1)
			FROM found WHERE starts_with(found.agent_run_id, $1::text))
		SELECT agent_run_id FROM found WHERE starts_with(agent_run_id, $1::text) LIMIT $2::int`

	newestOfAllSQL = lookedSQL + `SELECT id AS intent_id FROM outbox.intent` + lastSQL

	// An index on scopes would cost every row more than it is worth: they are asked for while they are new. So
	// would one on references, which an owner can ask for.
	namedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id IN (
			SELECT id FROM outbox.intent WHERE id = $1::bigint
			UNION (SELECT DISTINCT intent_id FROM outbox.attempt WHERE intent_id >= $5::bigint AND provider_ref = $3::text AND left(provider_ref, 255) = left($3::text, 255) ORDER BY intent_id DESC LIMIT $4::int)
			UNION SELECT id FROM outbox.intent WHERE id >= $2::bigint AND business_scope = $3::text)
		ORDER BY intent_id DESC LIMIT $4::int`

	keyedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id >= $1::bigint AND idempotency_key = $2::text
		ORDER BY intent_id DESC LIMIT $3::int`
)

// keyPrefix begins every idempotency key. Only such a text is compared with keys,
// because each must be computed.
const keyPrefix = "idem_v1_"

// Search looks where a text may stand: at the numbers of intents and at the ids of runs, by index;
// at keys, scopes and references of the newest MostLooked intents, and at all references where they have an index.
func (c *Console) Search(ctx context.Context, text string, limit int) (found Found, err error) {
	if found.Runs, err = c.RunsFrom(ctx, text, limit+1); err != nil {
		return found, err
	}
	var lowest int64
	if err := c.conn.QueryRow(ctx, newestOfAllSQL, int64(0), int64(0), c.look-1).Scan(&lowest); err != nil {
		return found, fmt.Errorf("find the newest intents: %w", err)
	}
	found.Bounded = lowest > 0
	statement, args := keyedSQL, []any{lowest, text, limit + 1}
	if !strings.HasPrefix(text, keyPrefix) {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			id = math.MinInt64 // no intent's
		}
		_, indexed, err := migrations.HasReferences(ctx, c.conn)
		if err != nil {
			return found, err
		}
		oldest := lowest // whose reference is looked at
		switch {
		case indexed:
			oldest = 0
		case found.Bounded:
			found.Index = IndexReferences
		}
		statement, args = namedSQL, []any{id, lowest, text, limit + 1, oldest}
	}
	if found.Intents, err = collect(ctx, c.conn, "find intents", pgx.RowToStructByPos[Intent], statement, args...); err != nil {
		return found, err
	}
	found.More = len(found.Runs) > limit || len(found.Intents) > limit
	found.Runs, found.Intents = found.Runs[:min(limit, len(found.Runs))], found.Intents[:min(limit, len(found.Intents))]
	return found, nil
}

// RunsFrom lists runs whose ids begin with a prefix, in the order of their ids.
func (c *Console) RunsFrom(ctx context.Context, prefix string, limit int) ([]string, error) {
	return collect(ctx, c.conn, "find runs", pgx.RowTo[string], runsFromSQL, prefix, limit)
}
