package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
)

//go:embed sql/late.sql
var lateSQL string

// recordLate keeps the proof of effects whose settlement was refused. The lane
// settles again until there was no error, and that ends here again.
func (s *Store) recordLate(ctx context.Context, worker string, settled []drainer.Settlement, refused []int) error {
	for _, i := range refused {
		late := settled[i]
		if late.Result.Outcome != dispatch.Completed || late.Row.Undoes != nil {
			continue
		}
		err := s.recordEffect(ctx, worker, late)
		if isDataError(err) {
			err = s.recordEffect(ctx, worker, withoutBody(late))
		}
		if err != nil {
			return fmt.Errorf("record a late effect: %w", err)
		}
	}
	return nil
}

func (s *Store) recordEffect(ctx context.Context, worker string, late drainer.Settlement) error {
	result := late.Result
	_, err := s.turns.Exec(ctx, lateSQL, worker, late.Row.IntentID, time.Since(late.StartedAt).Seconds(),
		orNull(int32(result.HTTPStatus)), orNull(result.ProviderRef), orNull(string(result.Response)), orNull(late.Row.Via), late.Acts)
	return err
}

// orNull leaves out what is the type's zero.
func orNull[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}
