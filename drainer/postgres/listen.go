package postgres

import (
	"context"
	"fmt"
)

// Listen wakes lanes by NOTIFY, on a connection of its own outside the pools.
// Rows that came before it listened are found by polling.
func (s *Store) Listen(ctx context.Context, wake func(provider string)) error {
	pooled, err := s.control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN outbox"); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		notification, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		wake(notification.Payload)
	}
}
