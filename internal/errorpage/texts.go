package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// texts are the errors that a package's functions and variables have as constant texts, in
// the order of their files: arguments of errors.New and fmt.Errorf, and what functions
// return as a refusal. What is filled in shows as an ellipsis.
func texts(folder string) (found []string, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", folder, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read a source: %w", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse a source: %w", err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			for _, expression := range messages(node) {
				// One that begins with another error is told with that.
				if text := textOf(expression); !slices.Contains(found, text) && !strings.HasPrefix(text, "…: ") && !strings.HasPrefix(text, "…;") && !strings.HasPrefix(text, "… with") {
					found = append(found, text)
				}
			}
			return true
		})
	}
	return found, nil
}

// messages are the expressions below a node that are shown to a user.
func messages(node ast.Node) (found []ast.Expr) {
	switch node := node.(type) {
	case *ast.CallExpr:
		switch nameOf(node.Fun) {
		case "errors.New", "fmt.Errorf":
			found = append(found, node.Args[0])
		case "refusal":
			found = append(found, node.Args[0])
		}
	case *ast.ValueSpec:
		if nameOf(node.Type) == "refusal" {
			found = append(found, node.Values...)
		}
	case *ast.FuncDecl:
		at := refusalOf(node.Type)
		if at < 0 {
			return nil
		}
		ast.Inspect(node.Body, func(inner ast.Node) bool {
			if back, is := inner.(*ast.ReturnStmt); is && at < len(back.Results) {
				if literal, is := back.Results[at].(*ast.BasicLit); is && literal.Value != `""` {
					found = append(found, literal)
				} else if sum, is := back.Results[at].(*ast.BinaryExpr); is {
					found = append(found, sum)
				}
			}
			return true
		})
	}
	return found
}

// refusalOf is the place of the refusal among a function's results, or -1.
func refusalOf(function *ast.FuncType) int {
	if function.Results == nil {
		return -1
	}
	return slices.IndexFunc(function.Results.List, func(field *ast.Field) bool { return nameOf(field.Type) == "refusal" })
}

func nameOf(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.Ident:
		return expression.Name
	case *ast.SelectorExpr:
		return nameOf(expression.X) + "." + expression.Sel.Name
	}
	return ""
}

var filledIn = regexp.MustCompile(`"?%(\[\d\])?[a-z]"?`)

func textOf(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(expression.Value)
		if err != nil {
			return ""
		}
		return filledIn.ReplaceAllString(text, "…")
	case *ast.BinaryExpr:
		return textOf(expression.X) + textOf(expression.Y)
	case *ast.CallExpr: // fmt.Sprintf
		return textOf(expression.Args[0])
	}
	return "…"
}
