// Package model holds small models of promises that must not break, and a search that tries every order of events
// in them.
//
//	explore/  the search: states, properties, shortest counterexamples
//	row/      one intent: two workers, crashes, lost replies, an operator, a provider
//	saga/     one run of three steps: its way forward, and back
//	share/    a lane that tenants and runs share: none of them starves, and limits are kept
//	real/     an outbox that the models are compared with
//
// The models share code with the program: they ask the program itself for the decision after an attempt, and for
// the next step of a saga. For the rest, a tour takes a step of every kind, both in the model and in a real
// outbox, and compares the two after each step. Each guard can be removed. Then a promise must break; otherwise
// the model does not show the purpose of the guard.
package model
