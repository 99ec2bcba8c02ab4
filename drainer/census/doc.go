// Package census shows what the tables of the outbox hold: how much waits and
// for how long, what is in progress, in doubt, open or undone, and what makes
// the database slow.
//
// Of all processes one leads, by a row with a lease that it renews every other
// second; it alone counts and shows, so that neither the database's work nor
// the numbers grow with the replicas. Where it dies, another one takes over
// within seconds. Where it cannot count any more, it soon shows nothing.
//
// A sample is a bounded number of index entries, however many rows there are:
// what could be many is counted to a limit, and dead rows are known to the
// database's own statistics.
//
// What only grows, duplicates and collisions, is counted once: how far is
// written beside the lease, so that a successor goes on from there.
package census
