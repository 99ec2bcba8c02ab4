// Package drainer is the engine: it moves committed intents out of the outbox
// and into the world, once.
//
// A row's journey:
//
//	agent's transaction ─▶ intent + queue
//	                          │ claim: a batch deletes the queue row and writes
//	                          │ the claim, the recovery point, in one commit
//	                          ▼
//	                        claim ──▶ dispatch ──▶ outcome ──▶ decision
//	                          │
//	                          │ settle: the next batch appends the attempt and,
//	                          │ for a retry, puts the row back into the queue;
//	                          │ with its last row the claim is deleted
//	                          ▼
//	                  settled, or queue again: to act, or to ask (lookup)
//
// A [Daemon] runs a [session]: the life of one worker identity. A session runs a
// [lane] for each provider, and one more for a provider's fallback. A lane is a loop of
// one goroutine that owns its claims. Its [planner] decides, without a clock or I/O, what
// to claim next and when. Its [pool] sends the claimed rows. The [committer] settles and
// claims for the lanes in batches, one round trip and one commit each. A lane with much
// to do, and a provider to itself, has two batches [inFlight] at a time; several lanes
// can share one. Beside large claims, it searches for other tenants with a small one.
//
// An [upstream] keeps this worker's share of what all workers may send to a provider, and
// its part in the [breaker] that they share. A [lease] is held by heartbeats. A worker that
// loses it stops sending and starts over under a new identity, and the [reaper] of any
// other worker recovers its rows.
//
// A reload begins a new [generation] of providers. Its session joins beside the
// one before, which from then on claims nothing and finishes what it began. The
// [roster] lists all sessions, and lets the newest leave last.
//
// The engine knows neither SQL nor a provider's protocol: it asks a [Store] and
// the adapters of package dispatch.
package drainer
