// Package dispatch holds what an effect is made of, free of any database: the
// key of an intent, the adapter that carries it to a provider, the outcome
// that the adapter saw, and the decision that follows from it.
//
//	Request ──Adapter.Dispatch──▶ Result ──Policy.Decide──▶ Decision
//
// An adapter reports evidence and nothing else; a Policy decides and does
// nothing else. The engine in package drainer stands between the two.
package dispatch
