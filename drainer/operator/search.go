package operator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Found lists the runs and intents that a text of a log or of a provider leads to.
type Found struct {
	Runs    []string `json:"runs"`    // whose ids begin with it, in the order of their ids
	Intents []Intent `json:"intents"` // it is their number, key, business scope or provider's reference; the newest first
	Bounded bool     `json:"bounded"` // older intents were not looked at
	More    bool     `json:"more"`    // there is more than the limit
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

	// An index on references and scopes would cost every row more than it is worth: these are
	// asked for while they are new.
	namedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id IN (
			SELECT id FROM outbox.intent WHERE id = $1::bigint
			UNION SELECT intent_id FROM outbox.attempt WHERE intent_id >= $2::bigint AND provider_ref = $3::text
			UNION SELECT id FROM outbox.intent WHERE id >= $2::bigint AND business_scope = $3::text)
		ORDER BY intent_id DESC LIMIT $4::int`

	keyedSQL = `SELECT ` + statusColumns + ` FROM outbox.standing WHERE intent_id >= $1::bigint AND idempotency_key = $2::text
		ORDER BY intent_id DESC LIMIT $3::int`
)

// keyPrefix begins every idempotency key. Only such a text is compared with keys,
// because each must be computed.
const keyPrefix = "idem_v1_"

// Search looks where a text may stand: at the numbers of intents and at the ids of runs, by index;
// at keys, scopes and references of the newest MostLooked intents.
func (c *Console) Search(ctx context.Context, text string, limit int) (found Found, err error) {
	if found.Runs, err = c.RunsFrom(ctx, text, limit+1); err != nil {
		return found, err
	}
	var lowest int64
	if err := c.conn.QueryRow(ctx, newestOfAllSQL, int64(0), int64(0), c.look-1).Scan(&lowest); err != nil {
		return found, fmt.Errorf("find the newest intents: %w", err)
	}
	found.Bounded = lowest > 0
	var rows pgx.Rows // CollectRows returns the error too
	if strings.HasPrefix(text, keyPrefix) {
		rows, _ = c.conn.Query(ctx, keyedSQL, lowest, text, limit+1)
	} else {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			id = math.MinInt64 // no intent's
		}
		rows, _ = c.conn.Query(ctx, namedSQL, id, lowest, text, limit+1)
	}
	if found.Intents, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Intent]); err != nil {
		return found, fmt.Errorf("find intents: %w", err)
	}
	found.More = len(found.Runs) > limit || len(found.Intents) > limit
	found.Runs, found.Intents = found.Runs[:min(limit, len(found.Runs))], found.Intents[:min(limit, len(found.Intents))]
	return found, nil
}

// RunsFrom lists runs whose ids begin with a prefix, in the order of their ids.
func (c *Console) RunsFrom(ctx context.Context, prefix string, limit int) ([]string, error) {
	rows, _ := c.conn.Query(ctx, runsFromSQL, prefix, limit) // CollectRows returns the error too
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find runs: %w", err)
	}
	return runs, nil
}
