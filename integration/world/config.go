package world

import (
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/integration/history"
)

// The tools of every world. Each is called at the same simulated provider.
const (
	Keyed    = "keyed/act"    // key_idempotent
	Set      = "set/act"      // naturally_idempotent
	Once     = "once/act"     // non_idempotent
	Asked    = "asked/act"    // non_idempotent, with a lookup
	Order    = "shop/order"   // key_idempotent, with a lookup; undone by Cancel
	Declined = "shop/refused" // the same, and the provider never does it
	Cancel   = "refunds/cancel"
)

// Tools is what the configuration promises of them.
var Tools = map[string]history.Tool{
	Keyed:    {Class: dispatch.KeyIdempotent, Stays: true},
	Set:      {Class: dispatch.NaturallyIdempotent, Stays: true},
	Once:     {Class: dispatch.NonIdempotent, Stays: true},
	Asked:    {Class: dispatch.NonIdempotent, Stays: true},
	Order:    {Class: dispatch.KeyIdempotent},
	Declined: {Class: dispatch.KeyIdempotent},
	Cancel:   {Class: dispatch.KeyIdempotent, Stays: true},
}

const declinedPath = "/v1/refused"

// config leases for a second, so that no test waits long for a death. Retries
// are many and quick: a fault is to be outlived, not to end rows.
const config = `version: 1
server: {listen: "127.0.0.1:0"}
worker: {heartbeat: 200ms, lease: 1s, shutdown_timeout: 5s}
providers:
  keyed:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/keyed, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  set:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: PUT, path: "/v1/set/{.key}", response: {ref: .id}}
        idempotency: {class: naturally_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  once:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/once, response: {ref: .id}}
        idempotency: {class: non_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
  asked:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      act:
        http: {method: POST, path: /v1/asked, response: {ref: .id}}
        idempotency: {class: non_idempotent}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensation: none
      find:
        http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
  shop:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      order:
        http: {method: POST, path: /v1/orders, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}
      refused:
        http: {method: POST, path: ` + declinedPath + `, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        lookup: {tool: find, margin: 500ms}
        compensate_with: {tool: refunds/cancel, payload: "{order: .provider_ref}"}
      find:
        http: {method: GET, path: "/effects/{.key}", response: {ref: .id, rules: [{when: .status == 404, outcome: absent}]}}
        idempotency: {class: read_only}
  refunds:
    adapter: http
    timeout: 1s
    concurrency: 16
    http: {base_url: %[1]s}
    tools:
      cancel:
        http: {method: POST, path: /v1/cancellations, response: {ref: .id}}
        idempotency: {class: key_idempotent, ttl: 24h, scope: account}
        retry: {max_attempts: 50, base: 20ms, cap: 200ms}
        compensation: none
`

func configFor(baseURL string) string { return fmt.Sprintf(config, baseURL) }
