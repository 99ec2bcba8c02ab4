// Package drainer is the engine: it moves committed intents out of the outbox
// and into the world, once.
//
// A row's journey:
//
//	agent's transaction ─▶ intent + queue
//	                          │ claim: a turn deletes the queue row and writes
//	                          │ the claim, the recovery point, in one commit
//	                          ▼
//	                        claim ──▶ dispatch ──▶ outcome ──▶ decision
//	                          │
//	                          │ settle: the next turn appends the attempt and,
//	                          │ for a retry, puts the row back into the queue;
//	                          │ with its last row the claim is deleted
//	                          ▼
//	                  settled, or queue again: to act, or to ask (lookup)
//
// A [Daemon] runs a [session]: the life of one worker identity. A session runs a
// [lane] for each provider, and one more for a provider's fallback; a lane is a
// single goroutine that owns its claims. It waits, and begins turns: round trips
// that settle what finished and claim what fits. A lane with much to do, and a
// provider to itself, has two of them [pending] at a time; turns of several lanes
// share a commit. Its [dispatchers] send what it claimed, through an [upstream],
// which keeps this worker's share of what the fleet may send to a provider, and
// its part in the [breaker] that all workers share. A [lease] is held by
// heartbeats; whoever loses it stops sending and starts over under a new identity,
// and the [reaper] of any other worker recovers what it left.
//
// A reload begins a new [generation] of providers. Its session joins beside the
// one before, which from then on claims nothing and finishes what it began; the
// [roster] knows them all, and lets the newest leave last.
//
// The engine knows neither SQL nor a provider's protocol: it asks a [Store] and
// the adapters of package dispatch.
package drainer
