// Package spelling suggests the name that a typing mistake probably meant.
package spelling

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest returns the end of a message: the known name that was probably meant, or a list of all known names.
func Suggest(name string, known []string) string {
	if len(known) == 0 {
		return "there is none"
	}
	if nearest, found := Nearest(name, known); found {
		return fmt.Sprintf("did you mean %q?", nearest)
	}
	return "known here: " + strings.Join(known, ", ")
}

// Nearest returns the known name that was probably meant. It returns false if no name is similar.
func Nearest(name string, known []string) (string, bool) {
	if len(known) == 0 {
		return "", false
	}
	nearest := slices.MinFunc(known, func(a, b string) int {
		return editDistance(name, a) - editDistance(name, b)
	})
	return nearest, editDistance(name, nearest) <= max(1, len(nearest)/3)
}

// editDistance counts the insertions, deletions and substitutions of one
// byte that turn a into b (Levenshtein, 1966).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitution := diagonal
			if a[i] != b[j] {
				substitution++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitution, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
