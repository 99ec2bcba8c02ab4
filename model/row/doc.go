// Package row is a model of one intent's way through the outbox: two workers
// that crash, freeze and lose replies, reapers, an operator, the clock, and a
// provider that has its effect now, late or never.
//
//	        an operator cancels or resolves it, or it is known late
//	  ┌───────────────────────────────────────────────────┐
//	  │  ┌────────────────────────────────────────────┐   │
//	  │  ▼          an operator retries it            │   ▼
//	queue ────────▶ claim: held, sent, heard of ───▶ settled: completed,
//	     ▲  a worker   │        its attempt ends      │  ▲  failed, unknown,
//	     │  claims it  │        for good              │  │  cancelled
//	     └─────────────┘                              └──┘
//	  to act again, or to ask: settled like that,    resolved, or known
//	  reclaimed, reaped as lost                      late: completed
//
// There is no state between claimed and in flight: the committed claim is the
// recovery point. A transaction is one step, except where two meet: a reaper
// locks first and then reads, an operator looks first and then acts. Nothing is
// counted but what a decision depends on, so workers may crash, and replies get
// lost, any number of times.
//
// What follows from an attempt is not modelled: [dispatch.Policy] decides it.
// Where a step and a real outbox differ, a test that takes both fails.
//
// Time is what has to be over. No request is on its way for longer than its
// timeout and its lookup's margin, nor for half of its key's life; the lease of
// a buried worker has run out. Who resolves an intent has found out the truth.
//
// Left out are fallbacks, breakers, pauses and limits, which hold rows back and
// settle none; reloads, which change a tool's class; pruning; and the runs that
// intents belong to, for which there is package saga.
package row
