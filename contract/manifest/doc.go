// Package manifest reads what an OpenAPI document says about repeating its
// operations: the extension x-agent-idempotency, described in docs/contract.md.
//
//	octets ──Parse──▶ Document ──read extensions──▶ declarations ──assert──▶ violations
//
// A document with violations is still a Document. Every violation names its
// operation, its place and its cure, and they always come in the same order.
package manifest
