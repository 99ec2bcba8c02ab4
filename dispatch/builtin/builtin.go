// Package builtin is the one list of the adapters that drainer ships with.
package builtin

import (
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/dispatch/webhook"
)

// Registry lists the built-in adapters.
func Registry() dispatch.Registry {
	registry, err := dispatch.NewRegistry(
		http.Kind(),
		webhook.Kind(),
	)
	if err != nil {
		panic(err) // two lines above have one name
	}
	return registry
}
