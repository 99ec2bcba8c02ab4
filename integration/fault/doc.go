// Package fault is the catalogue of what may break a daemon, each case with
// the tests that break it so. A test says with [Injected] how often it did;
// the program in report runs them all and prints a table.
package fault
