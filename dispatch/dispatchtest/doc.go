// Package dispatchtest is the other side of a dispatch: a simulated provider
// that fails in every known way and keeps an honest ledger of its effects.
//
//	request ──ledger──▶ refuse ──▶ key known? ──yes──▶ replay, or 409
//	   by plan: a Fault              │ no
//	                                 └──▶ act ──ledger──▶ reply, or lose it
//
// GET reads and has no effect. PUT sets, so repeating it has none either.
// POST acts, under its Idempotency-Key once. GET /effects/{key} is the lookup:
// it tells from the ledger whether a key had its effect.
//
// The provider is an http.Handler. The demo serves it beside its agents, tests
// serve it with Serve.
//
// [Conform] is for whoever writes an adapter: it holds the adapter to what the
// engine takes for granted. The judging is package conformance's; here it
// meets testing.
package dispatchtest
