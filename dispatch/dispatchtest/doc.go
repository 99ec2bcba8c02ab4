// Package dispatchtest is the other side of a dispatch: a simulated provider
// that fails in every known way and keeps an honest ledger of its effects.
//
// The provider is an http.Handler. The demo serves it beside its agents, tests
// serve it with Serve. Nothing here imports testing.
package dispatchtest
