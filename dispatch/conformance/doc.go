// Package conformance holds an adapter to what the engine takes for granted.
//
//	Subject ──Start──▶ Counterpart ◀──messages── Adapter ◀──Dispatch── Trial
//	                        │                       │                    │
//	                        └─Received──▶ judge ◀───┴──Seen──────────────┘
//	                                        ▼
//	                                     []Check
//
// Each [Trial] runs against a fresh counterpart and a fresh adapter, brings the
// counterpart into a [Situation], and asks for one kind of evidence. What holds
// of every dispatch is judged at the end of every trial: it returned, changed
// nothing in its request, sent at most one message, gave a result that can be
// stored and tells no secret, and left nothing behind.
//
// [Installed] is the same for an adapter that is configured already, whose
// counterpart cannot be told how to behave.
//
// Nothing here imports testing; package dispatchtest does.
package conformance
