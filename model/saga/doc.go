// Package saga is a model of one run of three steps: how they are enqueued,
// claimed and ended, how the run begins to go back, the passes that take it
// back, and the operator who is asked where they cannot.
//
//	         a step fails,                nothing is
//	         or an operator says so       left to undo
//	 open ─────────────────────▶ begun ──────────────▶ compensated
//	  │                          ▲ ▲ │                      │
//	  │ cancelled                │ │ │ an undo fails,       │ an effect
//	  │ by an                    │ │ │ or there is none     │ comes late
//	  │ operator          retried│ │ ▼                      │
//	  │                          │ └─ compensation_failed ◀─┴── resolved
//	  ▼   an operator says so    │
//	cancelled ───────────────────┘    an operator resolves begun and compensation_failed
//
// Enqueueing and claiming are two steps each, because what such a transaction
// knows of the saga may be old when it commits. So is a pass, which reads and
// then acts; meanwhile the saga is its own. Everything else is one step.
//
// What follows from an attempt is not modelled: [dispatch.Policy] decides it.
// Nor is what a pass does next: that is [compensations.Plan]. Where a step and
// the real tables differ, a test that takes both fails.
//
// An operator who says that a step failed may be wrong: then an effect that
// comes late is news. Otherwise operators tell the truth. What they decide and do
// is one step.
//
// Left out are a key's age, lost replies and batches, for which there is package
// row; fallbacks; windows in which an undo is possible; and pruning.
package saga
