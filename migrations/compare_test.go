package migrations_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/migrations"
)

func TestASchemaIsComparedBothWays(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	missing, newer, err := migrations.Compare(t.Context(), pool)
	if err != nil || len(missing) > 0 || len(newer) > 0 {
		t.Fatalf("of a schema that is current: missing %v, newer %v, %v", missing, newer, err)
	}
	execute(t, pool, "DELETE FROM outbox.goose_db_version WHERE version_id = 3")
	execute(t, pool, "INSERT INTO outbox.goose_db_version (version_id, is_applied) VALUES (901, true), (900, true), (902, false)")
	execute(t, pool, "INSERT INTO outbox.river_migration (line, version) VALUES ('main', 800), ('another', 801)")
	missing, newer, err = migrations.Compare(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if want := []migrations.Migration{{Set: migrations.SetOutbox, Version: 3, Name: "status"}}; !slices.Equal(missing, want) {
		t.Errorf("missing %v, want %v", missing, want)
	}
	want := []migrations.Migration{
		{Set: migrations.SetRiver, Version: 800, Applied: true},
		{Set: migrations.SetOutbox, Version: 900, Applied: true},
		{Set: migrations.SetOutbox, Version: 901, Applied: true},
	}
	if !slices.Equal(newer, want) {
		t.Errorf("newer %v, want %v", newer, want)
	}
}
