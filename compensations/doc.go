// Package compensations takes agent runs back that cannot go forward.
//
// A saga's journey:
//
//	a step fails for good ─▶ saga begun, in the commit that settles it
//	                            │ pass: stop what still waits in the queue
//	                            │ pass: wait for what is in flight or unknown
//	                            ▼
//	             newest completed step ──▶ its undo, an intent like any other
//	                            ▲                    │ settled: the forward step is
//	                            └── next pass ◀──────┘ compensated, in that commit
//	                            │
//	                            ▼
//	          compensated, or compensation_failed: an incident, a human
//
// A pass looks at the tables, does one thing, and can be cut off or repeated
// anywhere: River starts it, and fences nothing.
package compensations
