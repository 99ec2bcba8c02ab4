package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agentoutbox/drainer/drainer/postgres/sql"
)

// Incident is a problem that a human must decide about. While it is open, channels are paged. An acknowledgement ends
// the pages. The incident is resolved once its cause is gone.
type Incident struct {
	IncidentID     int64      `json:"incident_id"`
	Kind           string     `json:"kind"`
	State          string     `json:"state"`
	Generation     int        `json:"generation"` // how often it was opened
	IntentID       int64      `json:"intent_id"`
	AgentRunID     string     `json:"agent_run_id"`
	ToolName       *string    `json:"tool_name"`
	Detail         *string    `json:"detail"`
	OpenedAt       time.Time  `json:"opened_at"`
	PagedAt        *time.Time `json:"paged_at"` // when the last page that counts it was sent
	AcknowledgedAt *time.Time `json:"acknowledged_at"`
	AcknowledgedBy *string    `json:"acknowledged_by"`
	Reason         *string    `json:"reason"`
	ResolvedAt     *time.Time `json:"resolved_at"`
	ResolvedBy     *string    `json:"resolved_by"`
	NoRetry        bool       `json:"-"` // its saga has not failed, so acknowledging a compensation_failed resolves it
}

// NoTool says why an incident without a tool has no tool.
func (i Incident) NoTool() string {
	if i.Kind == "history_changed" {
		return "the whole outbox"
	}
	return "the intent was pruned"
}

// IncidentFilter narrows a listing. An empty field does not narrow it.
type IncidentFilter struct {
	All      bool  // list resolved incidents too
	Open     bool  // leave out acknowledged incidents
	ID       int64 // only this incident, whatever the other fields say
	Kind     string
	Tool     string
	Provider string
	Since    time.Time // opened then or later
	Until    time.Time // opened before
	After    int64     // only incidents behind this one, the last of the page before
	Limit    int
}

// IncidentPage is a part of a listing, the last opened incidents first.
type IncidentPage struct {
	Incidents []Incident
	After     int64 // the next page lists incidents behind this one; 0: this is the last page
	Looked    int   // if the page may lack incidents, since only so many were looked at: their number; else 0
}

const (
	// The parameters are: $1 kind ('': any), $2 only these incidents (null: any), $3 tool ('': any), $4 provider ('': any),
	// $5 whether to leave out acknowledged incidents. The incidents' times and numbers are below ($6, $7), and not below
	// ($8, $9).
	incidentsSQL = `
SELECT i.id, i.kind,
       CASE WHEN i.resolved_at IS NOT NULL THEN 'resolved' WHEN i.acknowledged_at IS NOT NULL THEN 'acknowledged' ELSE 'open' END,
       i.generation, i.intent_id, i.agent_run_id, t.tool_name, i.detail, i.opened_at,
       -- the last time, since the incident opened, that a page which counts it was sent
       (SELECT max(p.told_at) FROM outbox.page p
        JOIN outbox.incident f ON f.id = p.incident_id LEFT JOIN outbox.intent ft ON ft.id = f.intent_id
        WHERE f.kind = i.kind AND (i.kind = 'unconfigured_provider' OR ft.provider IS NOT DISTINCT FROM t.provider)
          AND p.told_at >= i.opened_at AND p.newest >= i.opened_at),
       i.acknowledged_at, i.acknowledged_by, i.reason, i.resolved_at, i.resolved_by,
       i.kind = 'compensation_failed' AND EXISTS (SELECT FROM outbox.saga s WHERE s.agent_run_id = i.agent_run_id AND s.state <> 'compensation_failed')
FROM outbox.incident i
-- The limit makes the filters by provider and by tool look up the intents of these incidents, instead of all intents.
LEFT JOIN LATERAL (SELECT tool_name, provider FROM outbox.intent WHERE id = i.intent_id LIMIT 1) t ON true
WHERE ($1::text = '' OR i.kind = $1::text) AND ($2::bigint[] IS NULL OR i.id = ANY ($2::bigint[])) AND (NOT $5::boolean OR i.acknowledged_at IS NULL)
  AND ($3::text = '' OR t.tool_name = $3::text) AND ($4::text = '' OR t.provider = $4::text)
  AND (i.opened_at, i.id) < ($6::timestamptz, $7::bigint) AND (i.opened_at, i.id) >= ($8::timestamptz, $9::bigint)`

	// The rows of each list have an index in this order. $10 is the limit.
	unresolvedSQL = incidentsSQL + isUnresolved + lastOpenedFirst + ` LIMIT $10::int`
	ofKindSQL     = incidentsSQL + isUnresolved + ` AND i.kind = $1::text` + lastOpenedFirst + ` LIMIT $10::int`
	allSQL        = incidentsSQL + lastOpenedFirst + ` LIMIT $10::int`

	isUnresolved    = ` AND i.resolved_at IS NULL`
	lastOpenedFirst = ` ORDER BY i.opened_at DESC, i.id DESC`

	// These return the last incident to look at, if more than $5 are between the bounds. Each has an index.
	lastOfAllSQL      = looksSQL + lastOpenedFirst + ` OFFSET $5::int LIMIT 1`
	lastUnresolvedSQL = looksSQL + isUnresolved + lastOpenedFirst + ` OFFSET $5::int LIMIT 1`
	lastOfKindSQL     = looksSQL + isUnresolved + ` AND i.kind = $6::text` + lastOpenedFirst + ` OFFSET $5::int LIMIT 1`

	looksSQL = `SELECT i.opened_at, i.id FROM outbox.incident i
		WHERE (i.opened_at, i.id) < ($1::timestamptz, $2::bigint) AND (i.opened_at, i.id) >= ($3::timestamptz, $4::bigint)`
)

// opening is a place in the order of incidents.
type opening struct {
	at         pgtype.Timestamptz
	incidentID int64
}

var (
	firstOpening = opening{at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}
	lastOpening  = opening{at: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}
)

// Incidents returns a page of the incidents that match the filter. If no index serves the filter, it looks at the newest
// MostLooked incidents, or at a quarter of them if it must look up the intent of each.
func (c *Console) Incidents(ctx context.Context, filter IncidentFilter) (page IncidentPage, err error) {
	if filter.ID != 0 {
		page.Incidents, err = c.these(ctx, filter.ID)
		return page, err
	}
	before, from := lastOpening, firstOpening
	if !filter.Since.IsZero() {
		from.at = pgtype.Timestamptz{Time: filter.Since, Valid: true}
	}
	if !filter.Until.IsZero() { // incidents have numbers above 0, so none that opened at that time comes before it
		before.at = pgtype.Timestamptz{Time: filter.Until, Valid: true}
	}
	if filter.After != 0 {
		err := c.conn.QueryRow(ctx, `SELECT least(opened_at, $2::timestamptz), CASE WHEN opened_at < $2::timestamptz THEN id ELSE 0 END FROM outbox.incident WHERE id = $1::bigint`,
			filter.After, before.at).Scan(&before.at, &before.incidentID)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // it was pruned
			return IncidentPage{Incidents: []Incident{}}, nil
		case err != nil:
			return page, fmt.Errorf("list incidents: %w", err)
		}
	}
	look := 0 // all
	switch {
	case filter.Tool != "" || filter.Provider != "":
		look = c.look / 4
	case filter.Open || filter.All && filter.Kind != "":
		look = c.look
	}
	list, last, bounds := unresolvedSQL, lastUnresolvedSQL, []any{before.at, before.incidentID, from.at, from.incidentID, look}
	switch {
	case filter.All:
		list, last = allSQL, lastOfAllSQL
	case filter.Kind != "":
		list, last, bounds = ofKindSQL, lastOfKindSQL, append(bounds, filter.Kind)
	}
	if look > 0 {
		switch err := c.conn.QueryRow(ctx, last, bounds...).Scan(&from.at, &from.incidentID); {
		case err == nil:
			page.Looked = look
		case !errors.Is(err, pgx.ErrNoRows):
			return page, fmt.Errorf("list incidents: %w", err)
		}
	}
	page.Incidents, err = collect(ctx, c.conn, "list incidents", pgx.RowToStructByPos[Incident], list, filter.Kind, nil,
		filter.Tool, filter.Provider, filter.Open, before.at, before.incidentID, from.at, from.incidentID, filter.Limit+1)
	switch {
	case err != nil:
		return IncidentPage{}, err
	case len(page.Incidents) > filter.Limit:
		page.Incidents, page.Looked = page.Incidents[:filter.Limit], 0
		page.After = page.Incidents[filter.Limit-1].IncidentID
	case page.Looked > 0:
		page.After = from.incidentID
	}
	return page, nil
}

// these returns the incidents of these numbers.
func (c *Console) these(ctx context.Context, ids ...int64) ([]Incident, error) {
	return collect(ctx, c.conn, "look at the incidents", pgx.RowToStructByPos[Incident], incidentsSQL, "", ids, "", "", false, lastOpening.at, 0, firstOpening.at, 0)
}

// ErrNoIncident says that no incident has this number.
var ErrNoIncident = errors.New("no incident has this number; `drainer incidents list --all` shows those there are")

// Incident returns an incident by its number, or ErrNoIncident.
func (c *Console) Incident(ctx context.Context, incidentID int64) (Incident, error) {
	found, err := c.these(ctx, incidentID)
	switch {
	case err != nil:
		return Incident{}, err
	case len(found) == 0:
		return Incident{}, ErrNoIncident
	}
	return found[0], nil
}

// Acknowledgement is the result of acknowledging one incident.
type Acknowledgement struct {
	IncidentID int64  `json:"incident_id"`
	Kind       string `json:"kind,omitempty"`    // empty if there is no such incident
	State      string `json:"state,omitempty"`   // the present state; empty if it is still open, or if there is no such incident
	Refused    string `json:"refused,omitempty"` // why nothing changed
}

// Acknowledge records that a human works on these incidents. No more pages are sent for them, unless they are opened
// again. shown is when the incidents were shown: an incident that opened at that time or later stays open. A zero time
// means that they were not shown. The results are in the order of the ids. Each bounded batch has a commit of its own.
// With an error, Acknowledge returns the results that were committed before.
func (c *Console) Acknowledge(ctx context.Context, by Signature, incidents []int64, shown time.Time) (all []Acknowledgement, err error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	each := slices.Compact(slices.Sorted(slices.Values(incidents)))
	for batch := range slices.Chunk(each, batchSize) {
		done, err := collect(ctx, c.conn, "acknowledge incidents", pgx.RowToStructByPos[Acknowledgement], sql.OperatorAcknowledge, batch, by.name(), by.Reason, orNull(shown))
		switch {
		case err != nil && len(all) > 0:
			return all, fmt.Errorf("it stopped after %d of %d incidents: %w", len(all), len(each), err)
		case err != nil:
			return nil, err
		}
		all = append(all, done...)
	}
	return all, nil
}

// Acknowledging is the effect that an acknowledgement would have on one incident. If there is no such incident, it has
// only the number and the refusal.
type Acknowledging struct {
	Incident
	After   string `json:"after"`
	Refused string `json:"refused,omitempty"` // the same text as Acknowledge returns
}

// PreviewAcknowledge returns the effect that Acknowledge would have on each incident, in the order of the ids. It changes
// nothing.
func (c *Console) PreviewAcknowledge(ctx context.Context, incidents []int64) ([]Acknowledging, error) {
	ids := slices.Compact(slices.Sorted(slices.Values(incidents)))
	found, err := c.these(ctx, ids...)
	if err != nil {
		return nil, err
	}
	known := make(map[int64]Incident, len(found))
	for _, incident := range found {
		known[incident.IncidentID] = incident
	}
	all := make([]Acknowledging, len(ids))
	for i, id := range ids {
		all[i] = Acknowledging{Incident: Incident{IncidentID: id}, Refused: "there is no such incident"}
		if incident, is := known[id]; is {
			all[i] = acknowledging(incident)
		}
	}
	return all, nil
}

// acknowledging returns the effect on one incident. It is a pure function.
func acknowledging(incident Incident) Acknowledging {
	would := Acknowledging{Incident: incident, After: incident.State}
	switch {
	case incident.State == "resolved":
		would.Refused = "it is resolved"
	case incident.AcknowledgedBy != nil:
		would.Refused = *incident.AcknowledgedBy + " acknowledged it before"
	case slices.Contains([]string{"key_collision", "refused_intent", "first_replay"}, incident.Kind), incident.NoRetry:
		would.After = "resolved" // it has no cause that could go away later
	default:
		would.After = "acknowledged"
	}
	return would
}
