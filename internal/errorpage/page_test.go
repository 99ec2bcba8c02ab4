package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainer/remedy"
)

const root = "../.."

func TestThePageIsAsTheCodeSays(t *testing.T) {
	t.Parallel()
	want, err := write(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "docs/errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/errors.md is older than the code: make generate")
	}
}

// A text of which the code computes the beginning names no error that a user could look up.
func TestEachErrorOfThePageHasWords(t *testing.T) {
	t.Parallel()
	page, err := write(root)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(page) {
		if wordless.MatchString(line) {
			t.Errorf("a text begins with what the code computes: %s", line)
		}
	}
}

var wordless = regexp.MustCompile(`(^- |; )…( with| under|[,;])`)

var (
	inDocument = regexp.MustCompile("`([a-z][a-z0-9]*(?:_[a-z0-9]+)*)`")
	documented = []string{"completed", "not_sent", "throttled", "rejected", "in_flight", "ambiguous", "credentials_refused", "forbidden", "non_idempotent"}
)

var errcode = regexp.MustCompile(`'(OB\d{3})'`)

// An SQLSTATE that the schema raises has a row.
func TestEverySQLStateOfTheSchemaIsExplained(t *testing.T) {
	t.Parallel()
	migrations, err := filepath.Glob(filepath.Join(root, "migrations/sql/*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, migration := range migrations {
		text, err := os.ReadFile(migration)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range errcode.FindAllStringSubmatch(string(text), -1) {
			checked++
			if _, known := remedy.OfEnqueue(found[1]); !known {
				t.Errorf("%s: %s is not in drainer/remedy", migration, found[1])
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d were found", checked)
	}
}

// A class that an adapter's page names has a row.
func TestEveryClassOfAnAdaptersPageIsExplained(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join(root, "docs/adapters/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, filepath.Join(root, "docs/adapter-protocol.md"))
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		inTable := false
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			last := cells[len(cells)-1]
			if strings.TrimSpace(last) == "error class" {
				inTable = true
				continue
			}
			inTable = inTable && strings.HasPrefix(line, "|")
			if !inTable {
				continue
			}
			for _, found := range inDocument.FindAllStringSubmatch(last, -1) {
				if checked++; !slices.Contains(documented, found[1]) {
					assertExplained(t, page, found[1])
				}
			}
		}
	}
	if checked < 80 {
		t.Errorf("only %d classes were found", checked)
	}
}

func assertExplained(t *testing.T, place, class string) {
	t.Helper()
	if _, known := remedy.OfAttempt(class); !known {
		t.Errorf("%s: %s is not in drainer/remedy", place, class)
	}
}

// A class that the code gives has a row, and a row's class is one that the code gives.
func TestEveryClassOfTheCodeIsExplained(t *testing.T) {
	t.Parallel()
	given, literals := classes(t)
	for class, place := range given {
		assertExplained(t, place, class)
	}
	if len(given) < 40 {
		t.Errorf("only %d classes were found", len(given))
	}
	ofOthers := regexp.MustCompile(`^(http|smtp|sqlstate|amqp|jetstream|function)_|_authorization_failed$|^sasl_|^late_effect$`) // made of a code, of Kafka's names, or by an SQL statement
	kafka := strings.Fields("corrupt_message invalid_topic_exception no_leader leader_not_available unknown_topic_or_partition not_enough_replicas throttling_quota_exceeded " +
		"not_enough_replicas_after_append request_timed_out record_list_too_large invalid_record invalid_timestamp policy_violation insufficient_*")
	for _, row := range slices.Concat(remedy.Attempts, remedy.Undos) {
		for _, class := range strings.Fields(row.Names) {
			if !literals[class] && !ofOthers.MatchString(class) && !slices.Contains(kafka, class) {
				t.Errorf("%s is in drainer/remedy, and no code gives it", class)
			}
		}
	}
}

// classes returns the error classes that the sources give at places that surely hold a class, each with its file.
// literals has all words of the sources.
func classes(t *testing.T) (given map[string]string, literals map[string]bool) {
	t.Helper()
	given, literals = map[string]string{}, map[string]bool{}
	for _, folder := range []string{"dispatch", "drainer", "compensations"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "dispatchtest") || strings.Contains(path, "remedy") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if word := wordOf(node); word != "" {
					literals[word] = true
				}
				for _, expression := range classesIn(node) {
					if word := wordOf(expression); word != "" {
						given[word] = path
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return given, literals
}

// classesIn returns the expressions that hold a class: the field of a result, the argument of a function that makes
// one, and the results of a function that is named after a class.
func classesIn(node ast.Node) (found []ast.Node) {
	switch node := node.(type) {
	case *ast.KeyValueExpr:
		if nameOf(node.Key) == "ErrorClass" {
			found = append(found, node.Value)
		}
	case *ast.AssignStmt:
		for i, left := range node.Lhs {
			if name := nameOf(left); (strings.HasSuffix(name, ".ErrorClass") || name == "class") && i < len(node.Rhs) {
				found = append(found, node.Rhs[i])
			}
		}
	case *ast.CallExpr:
		name := nameOf(node.Fun)
		if i := strings.LastIndex(name, "."); slices.Contains([]string{"NotSent", "Ambiguous", "Doubt", "end"}, name[i+1:]) && len(node.Args) > 0 {
			found = append(found, node.Args[0])
		}
	case *ast.CompositeLit:
		if name := nameOf(node.Type); (name == "fate" || name == "wireError" || name == "startError") && len(node.Elts) > 0 {
			found = append(found, node.Elts[0])
		}
	case *ast.FuncDecl:
		if !strings.HasSuffix(strings.ToLower(node.Name.Name), "class") && !slices.Contains([]string{"Sent", "Unsent", "Context", "Refusal", "channelFailure"}, node.Name.Name) || node.Body == nil {
			return nil
		}
		ast.Inspect(node.Body, func(inner ast.Node) bool {
			if back, is := inner.(*ast.ReturnStmt); is {
				for _, result := range back.Results {
					found = append(found, result)
				}
			}
			return true
		})
	}
	return found
}

var class = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func wordOf(node ast.Node) string {
	literal, is := node.(*ast.BasicLit)
	if !is || literal.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil || !class.MatchString(text) {
		return ""
	}
	return text
}
