package program

import (
	"fmt"
	"strings"
)

// MutantVariable names the mutant that stands in for the program of
// [WithFailpoints]: what is tested must then be seen to fail.
const MutantVariable = "DRAINER_MUTANT"

// Mutant is the program with one of its guards taken out. What is tested for
// safety must find each of them unsafe.
type Mutant struct {
	Name   string
	Belief string // what its author had in mind
	Edits  []Edit
}

func findMutant(name string) (Mutant, error) {
	var names []string
	for _, mutant := range Mutants {
		if mutant.Name == name {
			return mutant, nil
		}
		names = append(names, mutant.Name)
	}
	return Mutant{}, fmt.Errorf("there is no mutant %s; there are %s", name, strings.Join(names, ", "))
}

// overlayOf writes a mutant's files into folder, and returns what to build with.
func overlayOf(folder, mutant string) (path string, err error) {
	found, err := findMutant(mutant)
	if err != nil {
		return "", err
	}
	if path, err = writeOverlay(folder, found.Edits); err != nil {
		return "", fmt.Errorf("mutant %s: %w", mutant, err)
	}
	return path, nil
}
