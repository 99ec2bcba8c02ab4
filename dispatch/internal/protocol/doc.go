// Package protocol is what drainer and an adapter in another process say to
// each other, version 1: docs/adapter-protocol.md, whose messages are
// published as docs/adapter-protocol.schema.json.
//
//	hello   ⇄  both say which versions they speak, the adapter what it can do
//	Request →  one attempt at an intent
//	Result  ←  what became of it
//
// A message is one JSON object. The executable adapter sends them as lines,
// the sidecar as bodies; what they mean is the same.
package protocol
