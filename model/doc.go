// Package model holds small models of what must not go wrong, and the search
// that tries every order of events in them.
//
//	explore/  the search: states, properties, shortest counterexamples
//	row/      one intent: two workers, crashes, lost replies, an operator, a provider
//	saga/     one run of three steps: its way forward, and back
//	share/    a lane that tenants and runs share: none of them starves, and limits are kept
//	real/     an outbox that the models are compared with
//
// A model is worth what it has in common with the program. What follows from an
// attempt, and what a saga does next, the models ask the program itself. For the
// rest, a tour takes a step of every kind in the model and in a real outbox, and
// compares the two after each. Each guard can be taken away; then a promise must
// break, or the model does not show what the guard is for.
package model
