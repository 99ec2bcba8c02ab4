package config

import (
	"fmt"
	"slices"
	"strings"
)

// suggest says which of the known names was probably meant, or lists them.
func suggest(name string, known []string) string {
	if len(known) == 0 {
		return "there is none"
	}
	nearest := slices.MinFunc(known, func(a, b string) int {
		return editDistance(name, a) - editDistance(name, b)
	})
	if editDistance(name, nearest) <= max(1, len(nearest)/3) {
		return fmt.Sprintf("did you mean %q?", nearest)
	}
	return "known here: " + strings.Join(known, ", ")
}

// editDistance counts the insertions, deletions and substitutions of one
// octet that turn a into b (Levenshtein, 1966).
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
