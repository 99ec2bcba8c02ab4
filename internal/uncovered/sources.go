package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
)

// sources are files that were parsed.
type sources map[string][]function

type function struct {
	name        string
	first, last int
}

// at is the name of the function that has the line.
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
