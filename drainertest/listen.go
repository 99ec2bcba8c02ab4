package drainertest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Listen returns a function that tells what was notified on the channel until it is
// called.
func Listen(t testing.TB, db *pgxpool.Pool, channel string) (heard func() []string) {
	t.Helper()
	listener, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Release)
	Exec(t, listener, "LISTEN "+channel)
	return func() (payloads []string) {
		t.Helper()
		const end = "that was all"
		Exec(t, db, "SELECT pg_notify($1, $2)", channel, end)
		for {
			notification, err := listener.Conn().WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if notification.Payload == end {
				return payloads
			}
			payloads = append(payloads, notification.Payload)
		}
	}
}
