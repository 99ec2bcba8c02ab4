// Package program builds drainer and runs it as a person does: as processes,
// against one database, to be asked, signalled and killed.
//
// It is built as it ships, with its failpoints compiled in, or broken on
// purpose: see [Mutants].
package program
