package postgres_test

import (
	"slices"
	"testing"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/postgres"
)

func TestAnAdapterSaysWhichServersItConnectsTo(t *testing.T) {
	t.Parallel()
	for url, want := range map[string][]dispatch.Destination{
		"postgres://u:canary@db.example.com/shop": {{Network: "tcp", Address: "db.example.com:5432", TLS: dispatch.UpgradedTLS}},
		"postgres://u:canary@a.example.com:6000,b.example.com:6001/shop?sslmode=disable": {
			{Network: "tcp", Address: "a.example.com:6000"}, {Network: "tcp", Address: "b.example.com:6001"},
		},
	} {
		adapter, err := postgres.New(dispatch.Spec{Settings: dispatchtest.Block("url: " + url)})
		if err != nil {
			t.Fatal(err)
		}
		if got := adapter.Destinations(); !slices.Equal(got, want) {
			t.Errorf("%s: %+v", url, got)
		}
	}
}
