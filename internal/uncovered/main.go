// Command uncovered reads a coverage profile and prints, for each package, how
// many of its blocks ran, and then every block that no test ran.
package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage, in the module's folder: uncovered PROFILE")
		os.Exit(2)
	}
	if err := report(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "uncovered:", err)
		os.Exit(1)
	}
}

func report(to io.Writer, profile string) error {
	file, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	ran, err := readProfile(file, module())
	if err != nil {
		return fmt.Errorf("%s: %w", profile, err)
	}
	printPackages(to, ran)
	return printUncovered(to, ran)
}

func module() string {
	build, _ := debug.ReadBuildInfo()
	return build.Main.Path + "/"
}

// block is statements that run together.
type block struct {
	file string // from the module's folder
	line int    // where it begins
	span string
}

// readProfile says of each block whether it ran. A block of several profiles
// in one file ran if it ran in one of them.
func readProfile(from io.Reader, module string) (map[block]bool, error) {
	ran := map[block]bool{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "mode: ") {
			continue
		}
		var (
			b           block
			statements  int
			times       int
			place, span string
		)
		place, span, _ = strings.Cut(lines.Text(), ":")
		if _, err := fmt.Sscanf(span, "%d.%s %d %d", &b.line, &b.span, &statements, &times); err != nil {
			return nil, fmt.Errorf("%q is not a line of a coverage profile: %w", lines.Text(), err)
		}
		b.file = strings.TrimPrefix(place, module)
		ran[b] = ran[b] || times > 0
	}
	return ran, lines.Err()
}

func printPackages(to io.Writer, ran map[block]bool) {
	type count struct{ covered, all int }
	counts := map[string]count{}
	for b, did := range ran {
		of := counts[path.Dir(b.file)]
		of.all++
		if did {
			of.covered++
		}
		counts[path.Dir(b.file)] = of
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(to, "%5d of %5d  %s\n", counts[name].covered, counts[name].all, name)
	}
}

func printUncovered(to io.Writer, ran map[block]bool) error {
	functions := sources{}
	for _, b := range slices.SortedFunc(maps.Keys(ran), inOrder) {
		if ran[b] {
			continue
		}
		function, err := functions.at(b.file, b.line)
		if err != nil {
			return err
		}
		fmt.Fprintf(to, "%s:%d %s\n", b.file, b.line, function)
	}
	return nil
}

func inOrder(a, b block) int {
	return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.span, b.span))
}
