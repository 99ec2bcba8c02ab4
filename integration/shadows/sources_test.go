package shadows_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

// A source is one statement of the program.
type source struct{ place, sql string }

const (
	root   = "../.."
	module = "github.com/agentoutbox/drainer/"
)

// elsewhere lists folders without SQL that the daemon or the CLI runs under its own login. They hold tests, texts
// that a user sees or copies, the demo with its own database, and the migrations, whose functions set their
// search_path.
var elsewhere = []string{"clients", "demo", "deploy", "dispatch/postgres/inbox.sql", "drainertest", "examples", "integration", "migrations/sql", "model", "testdata"}

// statements returns all statements of the program. mixed has the Go expressions that look like a part of a statement
// and are built at run time.
func statements() (all, mixed []source, err error) {
	folders := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if entry.IsDir() {
			if slices.Contains(elsewhere, filepath.ToSlash(name)) || slices.Contains(elsewhere, entry.Name()) || strings.HasPrefix(entry.Name(), ".") && name != "." {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case slices.Contains(elsewhere, filepath.ToSlash(name)):
		case strings.HasSuffix(name, ".sql"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rendered, err := render(string(text))
			for _, sql := range rendered {
				all = append(all, source{filepath.ToSlash(name), sql})
			}
			return err
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			folders[filepath.Dir(name)] = true
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	program := &program{fset: token.NewFileSet(), packages: map[string]*types.Package{}}
	for folder := range folders {
		if _, err := program.Import(module + filepath.ToSlash(folder)); err != nil {
			return nil, nil, err
		}
	}
	return append(all, program.whole...), program.mixed, nil
}

// render makes the statements of a template in the same way as claim.go and settle.go.
func render(text string) (all []string, err error) {
	if !strings.Contains(text, "{{") {
		return []string{text}, nil
	}
	for _, part := range []bool{false, true} {
		parsed, err := template.New("").Parse(text)
		if err != nil {
			return nil, err
		}
		var made bytes.Buffer
		table := map[bool]string{false: "provider", true: "tool"}[part]
		if err := parsed.Execute(&made, struct {
			Probe, Operation, Undos bool
			Table                   string
		}{part, part, part, table}); err != nil {
			return nil, err
		}
		all = append(all, made.String())
	}
	return all, nil
}

// A program computes the constants of this module's packages. It does not know other packages.
type program struct {
	fset         *token.FileSet
	packages     map[string]*types.Package
	whole, mixed []source
}

// Import implements types.Importer.
func (p *program) Import(path string) (*types.Package, error) {
	if known := p.packages[path]; known != nil {
		return known, nil
	}
	folder, ours := strings.CutPrefix(path, module)
	if !ours {
		stranger := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
		stranger.MarkComplete()
		p.packages[path] = stranger
		return stranger, nil
	}
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(p.fset, filepath.Join(root, folder, entry.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	lenient := types.Config{Importer: p, Error: func(error) {}} // it does not know the declarations of other packages
	known, _ := lenient.Check(path, p.fset, files, info)
	if known == nil {
		return nil, errors.New("no package " + path)
	}
	p.packages[path] = known
	if slices.Contains(elsewhere, folder) {
		return known, nil
	}
	for _, file := range files {
		p.collect(file, info)
	}
	return known, nil
}

var (
	begins = regexp.MustCompile(`^(?:\s|--[^\n]*\n)*(?:SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH|VALUES|LOCK TABLE)\s`)
	goesOn = regexp.MustCompile(`\b(?:SELECT|FROM|WHERE|ORDER BY|LIMIT|VALUES)\s`)
)

// collect takes each constant that is a statement. A constant that is only a part of another constant is judged with
// the whole. A constant that is joined to a variable part cannot be judged.
func (p *program) collect(file *ast.File, info *types.Info) {
	ast.Inspect(file, func(n ast.Node) bool {
		expr, isExpr := n.(ast.Expr)
		if !isExpr {
			return true
		}
		value := info.Types[expr].Value
		if value != nil && value.Kind() == constant.String {
			if _, isName := expr.(*ast.Ident); isName {
				return false // it is judged where it is declared
			}
			parts := []string{constant.StringVal(value)}
			if strings.HasPrefix(parts[0], "BEGIN") { // several statements, and none of them contains a semicolon
				parts = strings.Split(parts[0], ";")
			}
			for _, part := range parts {
				if begins.MatchString(part) {
					p.whole = append(p.whole, p.source(expr, part))
				}
			}
			return false
		}
		if joined, isJoined := expr.(*ast.BinaryExpr); isJoined && joined.Op == token.ADD {
			var parts []string
			ast.Inspect(joined, func(n ast.Node) bool {
				part, isExpr := n.(ast.Expr)
				if !isExpr {
					return true
				}
				value := info.Types[part].Value
				if value != nil && value.Kind() == constant.String {
					parts = append(parts, constant.StringVal(value))
					return false
				}
				return true
			})
			if text := strings.Join(parts, " … "); begins.MatchString(text) || goesOn.MatchString(text) {
				p.mixed = append(p.mixed, p.source(expr, text))
				return false
			}
		}
		return true
	})
}

func (p *program) source(expr ast.Expr, sql string) source {
	at := p.fset.Position(expr.Pos())
	name, _ := filepath.Rel(root, at.Filename)
	return source{fmt.Sprintf("%s:%d", filepath.ToSlash(name), at.Line), sql}
}
