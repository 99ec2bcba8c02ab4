// Package contract is about what a provider promises of repeated calls: where
// it stands written, and whether it is true.
//
//	OpenAPI ──manifest──▶ operations ──providerblock──▶ drainer.yaml ──replay──▶ report
//
// [manifest] reads the extension x-agent-idempotency and finds what is wrong
// with it, [providerblock] turns it into configuration, and [replay] calls the
// provider to see whether it keeps its word.
//
// [manifest]: https://pkg.go.dev/github.com/agentoutbox/drainer/contract/manifest
// [providerblock]: https://pkg.go.dev/github.com/agentoutbox/drainer/contract/providerblock
// [replay]: https://pkg.go.dev/github.com/agentoutbox/drainer/contract/replay
package contract
