// Package compensations rolls back agent runs that cannot go on: it undoes the steps that they completed.
//
// A saga's journey:
//
//	a step fails for good ─▶ saga begun, in the commit that settles it
//	                            │ cancel the steps that wait in the queue
//	                            │ wait for steps in flight or unknown
//	                            ▼
//	             plan: the completed steps, the last completed first
//	                            │
//	                            ▼
//	             its next step ──▶ its undo, an intent like any other ◀───┐
//	                            ▲                    │ settled: the step is │ the next undo,
//	                            └── next pass ◀──────┴─ compensated ────────┘ in that commit
//	                            │
//	                            ▼
//	          compensated, or compensation_failed: an incident, a human
//
// A pass takes many sagas, which do not depend on each other, and moves each of them one step. Each process sweeps
// for itself. As the durable backstop, River has one process make a pass every ten seconds. A pass has three parts,
// and each part is at most one short transaction:
//
//	take   a commit records that the pass began, and no other process takes the saga
//	look   the pass reads the next step and makes its undo's payload; it holds no lock
//	move   a commit moves the saga, if the saga's row is still the version that the pass looked at
//
// A pass also decides in advance, for a minute, how the saga goes on once its undo has completed: the undos of the
// next few steps, and the end of the run. The commit that settles an undo carries out that decision without a pass.
// It leaves the saga to a pass if nothing is decided, if the run has changed since, or if a pass is under way.
//
// The invariant: as long as a saga is begun, each commit that changes the status of a step of its run, or of an undo,
// also writes the saga's row, and marks the saga as due now (moves_at). So if the row's version is unchanged, the run
// is unchanged too. A saga that no commit marked has nothing to do, and passes skip it. There is one exception: a
// step that was claimed before the saga began. No plan is made before each such step has ended, and until then the
// saga is polled.
//
// The memory of a pass does not grow with the run. A pass reads ids in portions, and payloads and responses up to a
// number of bytes, but at least one of them.
//
// If a process dies in a pass, or the database refuses a pass because of the run's own data, the saga stays taken.
// When its lease ends, another pass takes it. After three such passes a human is paged, because a fourth could kill
// a process again.
package compensations
