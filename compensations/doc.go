// Package compensations undoes what agent runs have completed that cannot go on.
//
// A saga's journey:
//
//	a step fails for good ─▶ saga begun, in the commit that settles it
//	                            │ stop what still waits in the queue
//	                            │ wait for what is in flight or unknown
//	                            ▼
//	             plan: the completed steps, the last completed first
//	                            │
//	                            ▼
//	             next step of it ──▶ its undo, an intent like any other ◀─┐
//	                            ▲                    │ settled: the step is │ the next undo,
//	                            └── next pass ◀──────┴─ compensated ────────┘ in that commit
//	                            │
//	                            ▼
//	          compensated, or compensation_failed: an incident, a human
//
// A pass takes many sagas, each of them for itself, and moves each of them one
// step. Each process sweeps by itself, and River, as the durable backstop, has some process
// make a pass every ten seconds. A pass has three parts, each one short transaction or none:
//
//	take   in one commit, it counts as begun and no other process takes the saga
//	look   it reads the next step alone, and makes the undo's payload; nothing is held
//	move   in one commit, if the saga's row is still the version that was looked at
//
// A pass also decides ahead, for a minute, what follows once its undo has completed: the undos of the next
// few steps, and the end of the run. The commit that settles an undo goes by that, without a
// pass. It leaves the saga to a pass where nothing is decided, where the run had news
// meanwhile, or where a pass is under way.
//
// The invariant: as long as a saga is begun, a commit that changes where a step
// of its run stands, or an undo, writes the saga's row too, and marks it to be moved
// now (moves_at). So a version that is unchanged has had no news, and a saga that
// nothing marks has nothing to do: a pass visits none that only waits. There is one
// exception: a step that was claimed before the saga began. There is no plan before
// each of these has ended, and until then the saga is looked at by the clock.
//
// What a pass reads and keeps does not grow with the run: ids are read in
// portions, payloads and responses up to a number of bytes, or one.
//
// A process that dies leaves the saga taken, and so does a pass that the database refuses for the
// run's own data. After a while another pass takes it. After three such passes a human is paged: the fourth
// could kill a process again.
package compensations
