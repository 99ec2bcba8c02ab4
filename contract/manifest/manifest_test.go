package manifest_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/agentoutbox/drainer/contract/manifest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestAGoodManifestHasNoViolations(t *testing.T) {
	t.Parallel()
	for file, operations := range map[string]int{"good.yaml": 8, "good.json": 1} {
		document, err := manifest.Load(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := len(document.Operations); got != operations {
			t.Errorf("%s: %d operations, want %d", file, got, operations)
		}
		for _, violation := range document.Violations() {
			t.Errorf("%s: %+v", file, violation)
		}
	}
}

func TestTheDocumentedExampleHasNoViolations(t *testing.T) {
	t.Parallel()
	document, err := manifest.Load("../../examples/contract/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if violations := document.Violations(); len(violations) > 0 || len(document.Operations) != 4 {
		t.Errorf("%d operations, %+v", len(document.Operations), violations)
	}
}

func TestEveryViolationIsNamed(t *testing.T) {
	t.Parallel()
	document, err := manifest.Load("testdata/bad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := table(document.Violations())
	const golden = "testdata/bad.golden"
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the violations changed; look at them, then run this test with -update\n%s", got)
	}
	for _, rule := range rules {
		if !slices.ContainsFunc(document.Violations(), func(v manifest.Violation) bool { return v.Rule == rule }) {
			t.Errorf("bad.yaml breaks no rule %s", rule)
		}
	}
}

var rules = []manifest.Rule{
	manifest.RuleUndeclared, manifest.RuleMalformed, manifest.RuleUnknownField, manifest.RuleUnknownClass,
	manifest.RuleReadWithEffect, manifest.RuleMissingField, manifest.RuleMisplacedField, manifest.RuleVagueDuration,
	manifest.RuleKeyPlace, manifest.RuleImpossibleStatus, manifest.RuleUndocumentedKey, manifest.RuleUndocumentedMarker,
	manifest.RuleUndocumentedStatus, manifest.RuleUnknownOperation, manifest.RuleLookupActs, manifest.RuleFutileReversal,
	manifest.RuleDuplicateID,
}

func table(violations []manifest.Violation) []byte {
	var text bytes.Buffer
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, v := range violations {
		fmt.Fprintf(columns, "%d\t%s %s\t%s\t%s\t%s\t%s\n", v.Line, v.Method, v.Path, v.Place, v.Rule, v.Problem, v.Cure)
	}
	columns.Flush()
	return text.Bytes()
}

func TestTheOrderOfViolationsIsAlwaysTheSame(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/bad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var first []manifest.Violation
	for range 20 {
		document, err := manifest.Parse(content)
		if err != nil {
			t.Fatal(err)
		}
		violations := document.Violations()
		if first == nil {
			first = violations
		}
		if !slices.Equal(first, violations) {
			t.Fatal("two readings of one document differ")
		}
	}
}

func TestAnUnreadableDocumentIsNotAPassedOne(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ document, says string }{
		"nothing":            {"", "neither 3.0.x nor 3.1.x"},
		"no YAML":            {"{", "not an OpenAPI document"},
		"a list":             {"[]", "not an OpenAPI document"},
		"Swagger 2":          {`swagger: "2.0"`, "neither 3.0.x nor 3.1.x"},
		"a later version":    {"openapi: 3.2.0\npaths: {}", "neither 3.0.x nor 3.1.x"},
		"a foreign file":     {"openapi: 3.0.3\npaths: {/a: {$ref: other.yaml}}", "bundle it into one"},
		"a reference astray": {"openapi: 3.0.3\npaths: {/a: {get: {parameters: [{$ref: '#/components/parameters/Gone'}]}}}", "Gone"},
	} {
		_, err := manifest.Parse([]byte(test.document))
		if !errors.Is(err, manifest.ErrUnreadable) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want ErrUnreadable that says %q", name, err, test.says)
		}
	}
	if _, err := manifest.Load("testdata/gone.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestTheServerIsAbsoluteOrNone(t *testing.T) {
	t.Parallel()
	for servers, want := range map[string]string{
		"[{url: https://api.example/v1}, {url: https://other.example}]":             "https://api.example/v1",
		"[{url: 'https://{r}.example', variables: {r: {default: eu, enum: [eu]}}}]": "https://eu.example",
		"[{url: 'https://{r}.example'}]":                                            "",
		"[{url: /v1}]":                                                              "",
		"[{url: ftp://api.example}]":                                                "",
		"[]":                                                                        "",
	} {
		document, err := manifest.Parse([]byte("openapi: 3.1.0\npaths: {}\nservers: " + servers))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if server := document.Server(); server != nil {
			got = server.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", servers, got, want)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, file := range []string{"good.yaml", "good.json", "bad.yaml"} {
		content, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte("openapi: 3.0.0\npaths: {/a: {post: {x-agent-idempotency: null, responses: {200: null}}, get: null}, /b: null}"))
	f.Add([]byte("openapi: 3.0.0\npaths: {/a: {post: {parameters: [null], requestBody: {content: {application/json: null}}, x-agent-idempotency: {class: key_idempotent, key: {field: a}}}}}"))
	f.Add([]byte("openapi: 3.1.0\nservers: [null]\ncomponents: {schemas: {A: {allOf: [{$ref: '#/components/schemas/A'}]}}}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		document, err := manifest.Parse(content)
		if (document == nil) == (err == nil) {
			t.Fatalf("neither or both: %v, %v", document, err)
		}
		if err != nil {
			return
		}
		document.Server()
		for _, violation := range document.Violations() {
			if violation.Method == "" || violation.Place == "" || violation.Rule == "" || violation.Problem == "" || violation.Cure == "" {
				t.Errorf("half a violation: %+v", violation)
			}
		}
	})
}
