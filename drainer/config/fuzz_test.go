package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentoutbox/drainer/dispatch"
)

// A file is loaded, or every mistake in it is listed with its place, the same
// ones every time, and none of its secrets.
func FuzzAFileIsLoadedOrItsMistakesAreListed(f *testing.F) {
	for _, seed := range []string{
		"", complete, "version: 1", "- a", "a: &a {b: *a}", "<<: {a: 1}", "? [a]\n: b", "{", "---\n---\n", "version: 1\nversion: 1",
		"version: 1\nproviders: {p: {adapter: fake, fake: {extra: [&x {a: 1}, *x, !!set {b}]}}}",
		"version: 1\nproviders: {p: {adapter: fake, fake: {token: \"${env:TOKEN}\", level: \"${env:TOKEN}\", wait: \"${env:TOKEN}\"}}}",
		"version: 1\nproviders: {p: {adapter: \"${env:TOKEN}\", fallback: \"${env:TOKEN}\", tools: {a: {fake: {path: x}, lookup: {tool: \"${file:/run/secrets/token}\"}, compensate_with: {tool: \"${env:TOKEN}\", payload: \"${env:TOKEN}\"}, payload_schema: \"${env:TOKEN}\"}}}}",
		"version: 1\nserver: {listen: \"${env:TOKEN}\"}\npages: [{webhook: {url: \"${env:DATABASE_URL}\", secret: \"${file:/run/secrets/token}\"}}]\negress: {allow: [\"${env:TOKEN}\"]}",
		"database: {url: \"${env:GONE} $${ ${file:/x\"}", "version: 0x1", "version: 1_0", "version: .inf", "\xef\xbb\xbfversion: 1", "version: 1\x00", "version: \"\xff\"",
		"a: " + strings.Repeat("[", 2000), strings.Repeat("a: &a\n ", 100), "version: |\n  1\n", "\t- a", "%YAML 1.2\n---\nversion: 1\n...\n", "version: 1 # \u2028\n",
	} {
		f.Add([]byte(seed))
	}
	registry, schema := fakeRegistry(f), publishedSchema(f)
	f.Fuzz(func(t *testing.T, content []byte) {
		config, err := load("drainer.yaml", content, registry, fakeSecrets())
		if (config == nil) == (err == nil) {
			t.Fatalf("neither or both: %v, %v", config, err)
		}
		if err == nil {
			checkStrict(t, content, registry, schema)
			return
		}
		var invalid *InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
			t.Fatalf("not a list of mistakes: %v", err)
		}
		for _, problem := range invalid.Problems {
			if problem.File == "" || problem.Message == "" || (problem.Line < 1) != (problem.Column < 1) {
				t.Errorf("half a mistake: %+v", problem)
			}
		}
		for _, secret := range []string{"hunter2", "leak me", "s3cret"} {
			if strings.Contains(err.Error(), secret) && !bytes.Contains(content, []byte(secret)) {
				t.Errorf("a secret is shown: %v", err)
			}
		}
		if _, again := load("drainer.yaml", content, registry, fakeSecrets()); again == nil || again.Error() != err.Error() {
			t.Errorf("first %v, then %v", err, again)
		}
	})
}

// checkStrict changes a good file into a bad one, and holds it to the schema
// that editors go by.
func checkStrict(t *testing.T, content []byte, registry dispatch.Registry, schema *jsonschema.Schema) {
	t.Helper()
	if _, err := load("drainer.yaml", slices.Concat(content, []byte("\nsurprise: 1\n")), registry, fakeSecrets()); err == nil {
		t.Errorf("an unknown field is let through behind %q", content)
	}
	var file any
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%q is loaded, but its schema says %v", content, err)
	}
}

func publishedSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	text, err := Schema(fakeRegistry(t))
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("drainer.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("drainer.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}
