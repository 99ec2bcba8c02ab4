package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// Tool has the promises of a configuration about one tool.
type Tool struct {
	Name        string   `json:"tool"`
	Class       string   `json:"class"`
	KeyTTL      string   `json:"key_ttl,omitempty"`
	MaxAttempts int      `json:"max_attempts"`
	Timeout     string   `json:"timeout"`
	Undo        string   `json:"compensation,omitempty"`
	Missing     []string `json:"missing,omitempty"` // what would make it safe for agents
}

type workers struct {
	Workers     []operator.Worker     `json:"workers"`
	Differences []operator.Difference `json:"differences"`
}

func readWorkers(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	found, err := from.Workers(ctx)
	return workers{found, operator.Differences(found)}, err
}

type tenants struct {
	Tenants []operator.Tenant `json:"tenants"`
	Next    string            `json:"next"` // of the next page; empty: there is none
	Look    int               `json:"-"`
}

func readTenants(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	found, err := from.Tenants(ctx, r.FormValue("after"), pageRows+1)
	if err != nil {
		return nil, err
	}
	page := tenants{Tenants: found[:min(pageRows, len(found))], Look: operator.TenantLook}
	if len(found) > pageRows {
		page.Next = page.Tenants[pageRows-1].Name
	}
	return page, nil
}

type operations struct {
	Operations []operator.Operation `json:"operations"`
	Next       int64                `json:"next"` // of the next page; 0: there is none
}

func readOperations(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	below, err := number(r, "below")
	if err != nil {
		return nil, err
	}
	found, err := from.Operations(ctx, below, pageRows+1)
	if err != nil {
		return nil, err
	}
	page := operations{Operations: found[:min(pageRows, len(found))]}
	if len(found) > pageRows {
		page.Next = page.Operations[pageRows-1].OperationID
	}
	return page, nil
}

type diagnosis struct {
	Findings []doctor.Finding `json:"findings"`
	At       time.Time        `json:"at"`
}

// freshFor is how long a diagnosis is shown again: it takes connections, and a page asks every two seconds.
const freshFor = time.Minute

// practice examines for one reader at a time.
type practice struct {
	examine func(context.Context) []doctor.Finding

	mu   sync.Mutex
	last diagnosis
}

func (p *practice) diagnosis(ctx context.Context) (diagnosis, error) {
	if p.examine == nil {
		return diagnosis{}, notFound("this console has no doctor")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last.At) < freshFor {
		return p.last, nil
	}
	findings := p.examine(ctx)
	if err := ctx.Err(); err != nil { // it may have seen the end of the request
		return diagnosis{}, err
	}
	p.last = diagnosis{findings, time.Now().UTC()}
	return p.last, nil
}

func (s *server) doctor(w http.ResponseWriter, r *http.Request) {
	found, err := s.practice.diagnosis(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, "doctor", "Doctor", found)
}

type configuration struct {
	Tools       []Tool                `json:"tools"`
	Workers     []operator.Worker     `json:"workers"`
	Differences []operator.Difference `json:"differences"`
}

func (s *server) readConfig(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	found, err := from.Workers(ctx)
	return configuration{s.tools(), found, operator.Differences(found)}, err
}
