package migrations

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestABusyTableIsTriedAgainAFewTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code                string
		failures, wantTries int
		wantErr             bool
	}{
		"free at once":    {"", 0, 1, false},
		"free in a while": {lockNotAvailable, 3, 4, false},
		"a deadlock":      {deadlockDetected, 1, 2, false},
		"never free":      {lockNotAvailable, 100, lockTries, true},
	} {
		busy := &pgconn.PgError{Code: c.code}
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			err := retryLocks(t.Context(), func() error {
				if tries++; tries <= c.failures {
					return busy
				}
				return nil
			})
			if tries != c.wantTries || errors.Is(err, busy) != c.wantErr {
				t.Errorf("%s: %d tries, then %v", name, tries, err)
			}
		})
	}
}

func TestAnotherErrorIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tries := 0
	err := retryLocks(context.Background(), func() error { tries++; return broken })
	if tries != 1 || !errors.Is(err, broken) {
		t.Errorf("%d tries, then %v", tries, err)
	}
}
