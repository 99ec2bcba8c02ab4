package drainertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Database creates a migrated database for one test and returns its URL. The
// user is a superuser, or the one of TEST_DATABASE_URL. The database is
// dropped after the test, and whoever is still connected is cut off.
func Database(t testing.TB) string {
	t.Helper()
	return create(t, func(s server) string { return s.template })
}

// EmptyDatabase is Database without the schema.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return create(t, func(server) string { return "template1" })
}

func create(t testing.TB, template func(server) string) string {
	t.Helper()
	s, err := shared.start()
	if err != nil {
		t.Fatal(err)
	}
	name := newName()
	if err := s.execute(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template(s)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.execute(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	databaseURL, err := s.databaseURL(name)
	if err != nil {
		t.Fatal(err)
	}
	return databaseURL
}

func newName() string { return "drainertest_" + strings.ToLower(rand.Text()) }

func (s *server) databaseURL(name string) (string, error) {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme == "" {
		return "", errors.New("TEST_DATABASE_URL is not a URL; write postgres://user:password@host:5432/name")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (s *server) execute(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("connecting to the test server: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
