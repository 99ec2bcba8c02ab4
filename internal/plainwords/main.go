// Command plainwords finds words that the project avoids: in Markdown, in comments of Go and SQL, and in the
// program's texts. It prints each with its place and a better choice, and exits with 1 if it finds any.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// rules gives a better choice for the words of each pattern.
var rules = []struct {
	words  *regexp.Regexp
	advice string
}{
	{regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|whoever)\b`), "name the actor: no human, no process, the caller"},
	{regexp.MustCompile(`(?i)\boctets?\b`), "write bytes"},
	{regexp.MustCompile(`(?i)\b(is|are) what\b`), "name the thing with a noun, or use a verb"},
	{regexp.MustCompile(`(?i)\b(goes|went|gone) back\b`), "write is rolled back, is requeued or is restored"},
	{regexp.MustCompile(`(?i)\b(anew|lest|heed(s|ed)?|errand|for\sever)\b`), "use a common word"},
}

// exempt lists trees and files that still contain such words. Remove an entry once it is clean.
var exempt = []string{"dashboards"}

// code matches quoted code and names, which are not checked.
var code = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|octet-stream")

type finding struct {
	line         int
	word, advice string
}

// judge finds the avoided words in a text that begins at a line of its file.
func judge(text string, line int) (found []finding) {
	text = code.ReplaceAllStringFunc(text, func(quoted string) string { return strings.Repeat("\n", strings.Count(quoted, "\n")) })
	for _, rule := range rules {
		for _, at := range rule.words.FindAllStringIndex(text, -1) {
			found = append(found, finding{line + strings.Count(text[:at[0]], "\n"), text[at[0]:at[1]], rule.advice})
		}
	}
	return found
}

// inGo checks comments and, except in tests, string literals.
func inGo(path string, source []byte) (found []finding, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range file.Comments {
		text := make([]string, len(group.List))
		for i, comment := range group.List {
			text[i] = strings.TrimPrefix(comment.Text, "//")
		}
		found = append(found, judge(strings.Join(text, "\n"), files.Position(group.Pos()).Line)...)
	}
	if strings.HasSuffix(path, "_test.go") {
		return found, nil
	}
	ast.Inspect(file, func(node ast.Node) bool {
		literal, is := node.(*ast.BasicLit)
		if !is || literal.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(text, " ") {
			found = append(found, judge(text, files.Position(literal.Pos()).Line)...)
		}
		return true
	})
	return found, nil
}

// inMarkdown checks the text outside of fenced blocks.
func inMarkdown(source []byte) []finding {
	var text strings.Builder
	fenced := false
	for lines := bufio.NewScanner(bytes.NewReader(source)); lines.Scan(); text.WriteByte('\n') {
		if strings.HasPrefix(strings.TrimSpace(lines.Text()), "```") {
			fenced = !fenced
		} else if !fenced {
			text.WriteString(lines.Text())
		}
	}
	return judge(text.String(), 1)
}

var sqlComment = regexp.MustCompile(`(?m)^(.*?)(--.*)?$`)

func check(path string, source []byte) ([]finding, error) {
	switch filepath.Ext(path) {
	case ".go":
		return inGo(path, source)
	case ".sql":
		return judge(sqlComment.ReplaceAllString(string(source), "$2"), 1), nil
	case ".md":
		return inMarkdown(source), nil
	}
	return nil, nil
}

func isExempt(path string) bool {
	for _, tree := range exempt {
		if is, _ := filepath.Match(tree, path); is {
			return true
		}
	}
	return false
}

func main() {
	isClean := true
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path != "." && strings.HasPrefix(name, ".") || name == "node_modules" || name == "bin" || isExempt(path)):
			return fs.SkipDir
		case entry.IsDir() || isExempt(path):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found, err := check(path, source)
		for _, f := range found {
			isClean = false
			fmt.Printf("%s:%d: %q: %s\n", path, f.line, f.word, f.advice)
		}
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !isClean {
		os.Exit(1)
	}
}
