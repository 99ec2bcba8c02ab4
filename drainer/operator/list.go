package operator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/migrations"
)

// Filter narrows a listing. An empty field does not narrow it.
type Filter struct {
	Status    string
	Dead      bool // only intents that need a human: failed, unknown without a lookup to come, or not undone
	Provider  string
	Tool      string
	Run       string
	Scope     string    // the whole business scope
	Tenant    string    // a tenant's name
	Reference string    // the whole reference of the provider
	Error     string    // a part of the last attempt's error
	Since     time.Time // enqueued then or later
	Until     time.Time // enqueued before
	Below     int64     // only intents with a lower number, such as the Below of the page before
	Limit     int
}

// Page is a part of a listing, the newest intents first.
type Page struct {
	Intents []Intent
	Below   int64  // the next page lists intents below this number; 0: this is the last page
	Bounded bool   // older intents were not looked at, so the page may lack some
	Index   string // if the listing is bounded only because an index is missing: the command that makes the index
}

// MostLooked bounds the rows that a listing looks at, because most filters have no index.
const MostLooked = 100_000

// IndexReferences is the command that makes the index on provider references. With the index, a reference is found
// even if its intent is old.
const IndexReferences = "drainer migrate references on"

// isDead leaves out unknown intents whose lookup may still find the outcome. It also leaves out the intents of a saga
// that ended well, except unknown steps, which still have their incident.
const isDead = ` AND status IN ('failed', 'unknown', 'compensation_failed') AND finished_at IS NOT NULL
	AND ((status = 'unknown' AND NOT starts_with(step_id, 'compensate:'::text)) OR NOT EXISTS (
		SELECT FROM outbox.saga g WHERE g.agent_run_id = standing.agent_run_id AND g.state IN ('compensated', 'resolved')))`

const filterSQL = `
	WHERE ($1::text = '' OR status = $1::text) AND ($2::text = '' OR provider = $2::text) AND ($3::text = '' OR agent_run_id = $3::text)
	AND ($4::text = '' OR tool_name = $4::text) AND ($5::text = '' OR strpos(lower(last_error), lower($5::text)) > 0)
	AND ($6::timestamptz IS NULL OR created_at >= $6::timestamptz) AND ($7::timestamptz IS NULL OR created_at < $7::timestamptz)
	AND ($8::bigint = 0 OR standing.intent_id < $8::bigint) AND ($9::bigint = 0 OR standing.intent_id >= $9::bigint)
	AND ($10::text = '' OR business_scope = $10::text) AND ($11::text = '' OR provider_ref = $11::text)
	AND ($12::text = '' OR tenant = (SELECT t.tenant_id FROM outbox.tenant t WHERE t.name = $12::text))`

const listSQL = `SELECT ` + statusColumns + ` FROM outbox.standing` + filterSQL

const newestSQL = ` ORDER BY intent_id DESC LIMIT $13`

// List returns a page of the intents that match the filter, the newest first.
func (c *Console) List(ctx context.Context, filter Filter) (page Page, err error) {
	list, last := statementsOf(filter)
	var lastArgs []any
	if filter.Reference != "" && filter.Run == "" {
		_, indexed, err := migrations.HasReferences(ctx, c.conn)
		switch {
		case err != nil:
			return Page{}, fmt.Errorf("list intents: %w", err)
		case indexed:
			last, lastArgs = lookedSQL+`SELECT intent_id FROM outbox.attempt WHERE provider_ref = $4::text AND left(provider_ref, 255) = left($4::text, 255)`+lastSQL, []any{filter.Reference}
		default:
			page.Index = IndexReferences
		}
	}
	below, lowest, err := c.bounds(ctx, filter)
	if err != nil {
		return Page{}, fmt.Errorf("list intents: %w", err)
	}
	isWhole := filter.Run != "" || filter == Filter{Below: filter.Below, Limit: filter.Limit} // a run is small
	// With most filters a few of the newest rows fill a page, so the last of many need not be found.
	for _, look := range []int{c.look / 100, c.look} {
		if look == 0 {
			continue // in tests
		}
		from := lowest
		if !isWhole {
			var lastLooked int64
			if err := c.conn.QueryRow(ctx, last, append([]any{below, lowest, look - 1}, lastArgs...)...).Scan(&lastLooked); err != nil {
				return Page{}, fmt.Errorf("list intents: %w", err)
			}
			page.Bounded, from = lastLooked > 0, max(lowest, lastLooked)
		}
		page.Intents, err = collect(ctx, c.conn, "list intents", pgx.RowToStructByPos[Intent], list, filter.Status, filter.Provider, filter.Run, filter.Tool, filter.Error,
			orNull(filter.Since), orNull(filter.Until), below, from, filter.Scope, filter.Reference, filter.Tenant, filter.Limit+1)
		if err != nil {
			return Page{}, err
		}
		page.Below = from
		if len(page.Intents) > filter.Limit || !page.Bounded {
			break
		}
	}
	switch {
	case len(page.Intents) > filter.Limit:
		page.Intents, page.Bounded = page.Intents[:filter.Limit], false
		page.Below = page.Intents[filter.Limit-1].IntentID
	case !page.Bounded:
		page.Below = 0
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

// These are the places where intents of a status can be. lastSQL finds the last of a number of them between the
// bounds $1 and $2: $3 is how many come before it.
const (
	// The newest intents come first, so that older ones need not be read from the view.
	amongSQL = `SELECT ` + statusColumns + ` FROM (SELECT DISTINCT intent_id FROM (`
	thoseSQL = `) AS looked WHERE ($8::bigint = 0 OR intent_id < $8::bigint) AND intent_id >= $9::bigint ORDER BY intent_id DESC) AS among
		JOIN outbox.standing USING (intent_id)` + filterSQL

	queuedRow    = `SELECT intent_id FROM outbox.queue`
	claimedRow   = `SELECT pg_catalog.unnest(intent_ids) AS intent_id FROM outbox.claim`
	settledRow   = `SELECT intent_id FROM outbox.attempt WHERE next_attempt_at IS NULL AND status <> 'completed' AND status = `
	unknownRow   = settledRow + `'unknown' UNION ALL ` + queuedRow + ` WHERE lookup UNION ALL ` + claimedRow // a claimed row may be a lookup
	deadRow      = settledRow + `'failed' UNION ALL ` + settledRow + `'unknown' UNION ALL ` + settledRow + `'compensation_failed'`
	completedRow = `SELECT intent_id FROM outbox.attempt WHERE status = 'completed'`
	attemptedRow = `SELECT intent_id FROM outbox.attempt` // without a newer backlog; an intent counts once for each attempt

	// The attempt that settled an intent has its last error.
	withErrorSQL = ` AND ($5::text = '' OR strpos(lower(error), lower($5::text)) > 0)`

	// Each branch has an index in the order of the intents, so the union needs no sort.
	deadSQL = amongSQL + settledRow + `'failed'` + withErrorSQL + ` UNION ALL ` + settledRow + `'unknown'` + withErrorSQL + ` UNION ALL ` +
		settledRow + `'compensation_failed'` + withErrorSQL + thoseSQL

	referredSQL = amongSQL + `SELECT intent_id FROM outbox.attempt WHERE provider_ref = $11::text AND left(provider_ref, 255) = left($11::text, 255)` + thoseSQL

	lookedSQL = `SELECT coalesce((SELECT intent_id FROM (`
	lastSQL   = `) AS looked WHERE ($1::bigint = 0 OR intent_id < $1::bigint) AND intent_id >= $2::bigint
		ORDER BY intent_id DESC OFFSET $3 LIMIT 1), 0)`
)

// statementsByStatus has the statements of each status.
var statementsByStatus = map[string]struct{ list, last string }{
	"pending":             {amongSQL + queuedRow + thoseSQL + newestSQL, lookedSQL + queuedRow + lastSQL},
	"in_progress":         {amongSQL + claimedRow + thoseSQL + newestSQL, lookedSQL + claimedRow + lastSQL},
	"unknown":             {amongSQL + unknownRow + thoseSQL + newestSQL, lookedSQL + unknownRow + lastSQL},
	"completed":           {amongSQL + completedRow + withErrorSQL + thoseSQL + newestSQL, lookedSQL + attemptedRow + lastSQL},
	"failed":              {amongSQL + settledRow + `'failed'` + withErrorSQL + thoseSQL + newestSQL, lookedSQL + settledRow + `'failed'` + lastSQL},
	"cancelled":           {amongSQL + settledRow + `'cancelled'` + withErrorSQL + thoseSQL + newestSQL, lookedSQL + settledRow + `'cancelled'` + lastSQL},
	"compensated":         {amongSQL + settledRow + `'compensated'` + withErrorSQL + thoseSQL + newestSQL, lookedSQL + settledRow + `'compensated'` + lastSQL},
	"compensation_failed": {amongSQL + settledRow + `'compensation_failed'` + withErrorSQL + thoseSQL + newestSQL, lookedSQL + settledRow + `'compensation_failed'` + lastSQL},
}

// statementsOf returns the statement that lists the intents of a filter, and the one that finds the last intent to look
// at.
func statementsOf(filter Filter) (list, last string) {
	switch {
	case filter.Run != "" && filter.Dead: // the primary key begins with the run
		return listSQL + isDead + newestSQL, newestOfAllSQL
	case filter.Run != "":
		return listSQL + newestSQL, newestOfAllSQL
	case filter.Reference != "" && filter.Dead: // a scan of the attempts is cheaper than an index look for each intent
		return referredSQL + isDead + newestSQL, newestOfAllSQL
	case filter.Reference != "":
		return referredSQL + newestSQL, newestOfAllSQL
	case filter.Dead:
		return deadSQL + isDead + newestSQL, lookedSQL + deadRow + lastSQL
	}
	if found, indexed := statementsByStatus[filter.Status]; indexed {
		return found.list, found.last
	}
	if filter.Error != "" { // as for a reference
		return amongSQL + `SELECT intent_id FROM outbox.attempt WHERE strpos(lower(error), lower($5::text)) > 0` + thoseSQL + newestSQL, newestOfAllSQL
	}
	return listSQL + newestSQL, newestOfAllSQL
}

// slack is by how many numbers the order of the intents' ids may differ from the order of their times.
const slack = 1000

// bounds returns the numbers between which a listing looks. It turns times into numbers, because intents are numbered
// in the order in which they are enqueued.
func (c *Console) bounds(ctx context.Context, filter Filter) (below, lowest int64, err error) {
	below = filter.Below
	if filter.Run != "" {
		return below, 0, nil
	}
	if !filter.Until.IsZero() {
		until, err := c.firstAt(ctx, filter.Until)
		if err != nil {
			return 0, 0, err
		}
		if below == 0 || until+slack < below {
			below = until + slack
		}
	}
	if !filter.Since.IsZero() {
		since, err := c.firstAt(ctx, filter.Since)
		if err != nil {
			return 0, 0, err
		}
		lowest = max(1, since-slack)
	}
	if filter.Status == "completed" { // a join would read all of a newer backlog
		err := c.conn.QueryRow(ctx, `SELECT coalesce(max(intent_id), 0) + 1 FROM outbox.attempt WHERE $1::bigint = 0 OR intent_id < $1::bigint`, below).Scan(&below)
		if err != nil {
			return 0, 0, err
		}
	}
	return below, lowest, nil
}

// firstAt returns the lowest number of an intent that was enqueued at that time or later. It is a binary search,
// because the index on created_at is too coarse to sort by.
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

// Found lists the runs and intents that match a text, such as one from a log or a provider.
type Found struct {
	Runs    []string `json:"runs"`            // runs whose ids begin with the text, in the order of their ids
	Intents []Intent `json:"intents"`         // intents with the text as number, key, scope or reference; the newest first
	Bounded bool     `json:"bounded"`         // older intents were not looked at
	More    bool     `json:"more"`            // more runs or intents match than the limit
	Index   string   `json:"index,omitempty"` // IndexReferences, if with the index more could be found; else empty
}

const (
	// It takes one index look for each run, independently of the number of its intents.
	runsFromSQL = `WITH RECURSIVE found AS (
			(SELECT agent_run_id FROM outbox.intent WHERE agent_run_id >= $1::text ORDER BY agent_run_id LIMIT 1)
			UNION ALL
			SELECT (SELECT i.agent_run_id FROM outbox.intent i WHERE i.agent_run_id > found.agent_run_id ORDER BY i.agent_run_id LIMIT 1)
			FROM found WHERE starts_with(found.agent_run_id, $1::text))
		SELECT agent_run_id FROM found WHERE starts_with(agent_run_id, $1::text) LIMIT $2::int`

	newestOfAllSQL = lookedSQL + `SELECT id AS intent_id FROM outbox.intent` + lastSQL

	// An index on scopes would cost each row more than it is worth, because people search for new intents. The same
	// is true of an index on references, but the schema's owner can have one made.
	namedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id IN (
			SELECT id FROM outbox.intent WHERE id = $1::bigint
			UNION (SELECT DISTINCT intent_id FROM outbox.attempt WHERE intent_id >= $5::bigint AND provider_ref = $3::text AND left(provider_ref, 255) = left($3::text, 255) ORDER BY intent_id DESC LIMIT $4::int)
			UNION SELECT id FROM outbox.intent WHERE id >= $2::bigint AND business_scope = $3::text)
		ORDER BY intent_id DESC LIMIT $4::int`

	keyPartsSQL = `SELECT id, agent_run_id, step_id, tool_name, business_scope, coalesce(namespace, ''::text), coalesce(generation, 1)
		FROM outbox.intent LEFT JOIN outbox.generation ON intent_id = id WHERE id >= $1::bigint ORDER BY id DESC`

	keyedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id = ANY ($1::bigint[]) ORDER BY intent_id DESC LIMIT $2::int`
)

// keyPrefix is the begin of each idempotency key. Only a text with this prefix is compared with keys,
// because each key must be computed.
const keyPrefix = "idem_v1_"

// Search compares a text with the numbers of all intents and the ids of all runs, by index. It compares the text with
// the keys, scopes and references of only the newest MostLooked intents, but with all references if they have an index.
func (c *Console) Search(ctx context.Context, text string, limit int) (found Found, err error) {
	if found.Runs, err = c.RunsFrom(ctx, text, limit+1); err != nil {
		return found, err
	}
	var lowest int64
	if err := c.conn.QueryRow(ctx, newestOfAllSQL, int64(0), int64(0), c.look-1).Scan(&lowest); err != nil {
		return found, fmt.Errorf("find the newest intents: %w", err)
	}
	found.Bounded = lowest > 0
	statement, args := namedSQL, []any(nil)
	if strings.HasPrefix(text, keyPrefix) {
		ids, err := c.withKey(ctx, text, lowest, limit+1)
		if err != nil {
			return found, err
		}
		statement, args = keyedSQL, []any{ids, limit + 1}
	} else {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			id = math.MinInt64 // no intent has this number
		}
		_, indexed, err := migrations.HasReferences(ctx, c.conn)
		if err != nil {
			return found, err
		}
		oldest := lowest // the oldest intent whose reference is compared
		switch {
		case indexed:
			oldest = 0
		case found.Bounded:
			found.Index = IndexReferences
		}
		args = []any{id, lowest, text, limit + 1, oldest}
	}
	if found.Intents, err = collect(ctx, c.conn, "find intents", pgx.RowToStructByPos[Intent], statement, args...); err != nil {
		return found, err
	}
	found.More = len(found.Runs) > limit || len(found.Intents) > limit
	found.Runs, found.Intents = found.Runs[:min(limit, len(found.Runs))], found.Intents[:min(limit, len(found.Intents))]
	return found, nil
}

// withKey returns the newest intents that have this key. Keys are not stored, so it computes the key of each intent from
// lowest on. Postgres only reads the parts of the keys: it would take ten times as long to compute them too.
func (c *Console) withKey(ctx context.Context, key string, lowest int64, limit int) (ids []int64, err error) {
	rows, _ := c.conn.Query(ctx, keyPartsSQL, lowest) // ForEachRow returns the error too
	var id int64
	var tuple dispatch.Tuple
	var qualifiers dispatch.Qualifiers
	_, err = pgx.ForEachRow(rows, []any{&id, &tuple.AgentRunID, &tuple.StepID, &tuple.ToolName, &tuple.BusinessScope, &qualifiers.Namespace, &qualifiers.Generation}, func() error {
		if len(ids) < limit && tuple.QualifiedKey(qualifiers) == key {
			ids = append(ids, id)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compute the newest keys: %w", err)
	}
	return ids, nil
}

// RunsFrom lists runs whose ids begin with a prefix, in the order of their ids.
func (c *Console) RunsFrom(ctx context.Context, prefix string, limit int) ([]string, error) {
	return collect(ctx, c.conn, "find runs", pgx.RowTo[string], runsFromSQL, prefix, limit)
}
