package operator

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	//go:embed sql/incidents.sql
	incidentsSQL string
	//go:embed sql/acknowledge.sql
	acknowledgeSQL string
)

// Incident is something that a human must decide. It is open, and pages; then
// acknowledged, which ends the paging; and resolved once its cause is gone.
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
	PagedAt        *time.Time `json:"paged_at"` // when a channel was last told of it
	AcknowledgedAt *time.Time `json:"acknowledged_at"`
	AcknowledgedBy *string    `json:"acknowledged_by"`
	Reason         *string    `json:"reason"`
	ResolvedAt     *time.Time `json:"resolved_at"`
	ResolvedBy     *string    `json:"resolved_by"`
}

// IncidentFilter narrows a listing; what is empty does not.
type IncidentFilter struct {
	All   bool // the resolved ones as well
	Kind  string
	Limit int
}

// Incidents returns those opened last first.
func (c *Console) Incidents(ctx context.Context, filter IncidentFilter) ([]Incident, error) {
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, incidentsSQL, filter.All, filter.Kind, filter.Limit)
	incidents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Incident])
	if err != nil {
		return nil, fmt.Errorf("list incidents: %w", err)
	}
	return incidents, nil
}

// Acknowledgement is what became of one incident that was to be acknowledged.
type Acknowledgement struct {
	IncidentID int64  `json:"incident_id"`
	Kind       string `json:"kind,omitempty"`    // empty, like the state, if there is no such incident
	State      string `json:"state,omitempty"`   // from now on
	Refused    string `json:"refused,omitempty"` // why nothing changed
}

// Acknowledge says that somebody has these incidents: nobody is paged for them
// any more, unless they are opened again. It answers in the order of their ids.
func (c *Console) Acknowledge(ctx context.Context, by Signature, incidents []int64) ([]Acknowledgement, error) {
	if err := by.Validate(); err != nil {
		return nil, err
	}
	rows, _ := c.conn.Query(ctx, acknowledgeSQL, incidents, by.worker(), by.Reason)
	done, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Acknowledgement])
	if err != nil {
		return nil, fmt.Errorf("acknowledge incidents: %w", err)
	}
	return done, nil
}
