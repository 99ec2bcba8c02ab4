// Package egress decides which addresses a provider's connections may reach.
//
//	name ──allowed?──▶ resolve ──▶ address ──forbidden? allowed?──▶ connect
//
// The address is checked where the operating system is about to connect, after
// every resolving of a name: a name that stands for another address from one
// look-up to the next (DNS rebinding) gains nothing.
package egress
