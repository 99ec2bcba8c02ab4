package operator

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/internal/spelling"
)

var (
	//go:embed sql/providers.sql
	gatesSQL string
	//go:embed sql/gate.sql
	gateSQL string
)

// UnknownProviderError says that no worker has announced such a provider, and
// that no row waits for it.
type UnknownProviderError struct {
	Name  string
	Known []string
}

func (e *UnknownProviderError) Error() string {
	return fmt.Sprintf("there is no provider %q; %s", e.Name, spelling.Suggest(e.Name, e.Known))
}

// Provider is what all workers share about one.
type Provider struct {
	Provider  string     `json:"provider"`
	Paused    bool       `json:"paused"`
	Breaker   string     `json:"circuit_breaker"`
	OpenUntil *time.Time `json:"open_until"` // while the breaker is not closed
	ChangedAt *time.Time `json:"changed_at"` // when it was last paused or resumed, by whom and why
	ChangedBy *string    `json:"changed_by"`
	Reason    *string    `json:"reason"`
}

// Providers lists those that workers have announced, by name.
func (c *Console) Providers(ctx context.Context) ([]Provider, error) { return c.gates(ctx, "") }

// Provider finds one by its name.
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
	known := make([]string, len(providers))
	for i, provider := range providers {
		known[i] = provider.Provider
	}
	return &UnknownProviderError{Name: name, Known: known}
}

func (c *Console) gates(ctx context.Context, name string) ([]Provider, error) {
	// CollectRows returns the error too.
	rows, _ := c.conn.Query(ctx, gatesSQL, name)
	providers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Provider])
	if err != nil {
		return nil, fmt.Errorf("list providers: %w", err)
	}
	return providers, nil
}

// Pause keeps every worker from claiming a provider's rows, from the commit
// on. It reports false if the provider was paused already.
func (c *Console) Pause(ctx context.Context, provider string, by Signature) (changed bool, err error) {
	return c.setGate(ctx, provider, true, by)
}

// Resume ends a pause. It reports false if there was none.
func (c *Console) Resume(ctx context.Context, provider string, by Signature) (changed bool, err error) {
	return c.setGate(ctx, provider, false, by)
}

func (c *Console) setGate(ctx context.Context, provider string, paused bool, by Signature) (changed bool, err error) {
	if err := by.Validate(); err != nil {
		return false, err
	}
	known := true
	err = pgx.BeginTxFunc(ctx, c.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, gateSQL, provider, paused, by.worker(), by.Reason)
		if changed = tag.RowsAffected() > 0; err != nil || changed {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.provider WHERE name = $1)`, provider).Scan(&known)
	})
	switch {
	case err != nil:
		return false, fmt.Errorf("pause or resume a provider: %w", err)
	case !known:
		return false, c.unknownProvider(ctx, provider)
	}
	return changed, nil
}
