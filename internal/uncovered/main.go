// Command uncovered reads a coverage profile. For each package it prints how many of its blocks ran, and then
// every block that no test ran.
package main

import (
	"bufio"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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

// block is a group of statements that run together.
type block struct {
	file string // relative to the module's folder
	line int    // its first line
	span string
}

// readProfile returns for each block whether it ran. The file may hold several profiles: a block ran if it ran in
// one of them.
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

// sources holds the functions of each parsed file.
type sources map[string][]function

type function struct {
	name        string
	first, last int
}

// at returns the name of the function that contains the line.
func (s sources) at(file string, line int) (string, error) {
	if _, parsed := s[file]; !parsed {
		functions, err := functionsOf(file)
		if err != nil {
			return "", fmt.Errorf("finding functions: %w", err)
		}
		s[file] = functions
	}
	for _, f := range s[file] {
		if f.first <= line && line <= f.last {
			return f.name, nil
		}
	}
	return "outside any function", nil
}

func functionsOf(file string) (functions []function, err error) {
	places := token.NewFileSet()
	tree, err := parser.ParseFile(places, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declaration := range tree.Decls {
		if f, is := declaration.(*ast.FuncDecl); is {
			functions = append(functions, function{nameOf(f), places.Position(f.Pos()).Line, places.Position(f.End()).Line})
		}
	}
	return functions, nil
}

func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := types.ExprString(f.Recv.List[0].Type)
	return "(" + receiver + ")." + f.Name.Name
}
