package exec

import (
	"os"
	"slices"
)

// inherited are the variables that a program needs in order to start, and that
// hold no secrets. DATABASE_URL, and what else drainer was given, is not the
// program's business. That keeps it from passing on by accident what it could
// read in /proc all the same.
var inherited = []string{"PATH", "HOME", "LANG", "TMPDIR", "TZ"}

// environment is what the program sees. What is configured goes last, where it
// wins.
func environment(configured map[string]string) []string {
	variables := []string{}
	for _, name := range inherited {
		if value, set := os.LookupEnv(name); set {
			variables = append(variables, name+"="+value)
		}
	}
	for name, value := range configured {
		variables = append(variables, name+"="+value)
	}
	slices.Sort(variables[len(variables)-len(configured):])
	return variables
}
