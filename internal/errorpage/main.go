// Command errorpage writes docs/errors.md: the errors that a user can meet, from the tables
// that the program itself prints from, and from the texts of its refusals.
package main

import (
	"fmt"
	"os"
)

//go:generate sh -c "go run . ../.. > page.tmp && mv page.tmp ../../docs/errors.md"

func main() {
	page, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(page)
}
