// Package doctor looks an installation over: the database that the daemon
// would use, what lies in the outbox, and the way to each provider. It says
// what is wrong and what to do about it, and changes nothing.
//
//	Patient ──Examine──▶ check, check, check … ──▶ Findings, each with its cure
//
// Checks run side by side, each within a time of its own; one that fails is a
// finding too, and keeps no other from running. No finding shows a payload, a
// run, a key or a password.
package doctor
