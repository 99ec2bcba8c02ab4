package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/agentoutbox/drainer/drainer/config"
)

const configurationPage = "../../../docs/configuration.md"

// The page lists what the published schema says, so neither can be ahead.
func TestEveryFieldOfTheConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, _ := strings.Cut(string(text), "## The file")
	want := introduction + tablesOfFields(t)
	if *update {
		if err := os.WriteFile(configurationPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Error("docs/configuration.md is stale; run this test with -update, and look at what changed")
	}
}

func tablesOfFields(t *testing.T) string {
	t.Helper()
	registry := builtins(t)
	published, err := config.Schema(registry)
	if err != nil {
		t.Fatal(err)
	}
	var root jsonschema.Schema
	if err := json.Unmarshal(published, &root); err != nil {
		t.Fatal(err)
	}
	provider := property(t, &root, "providers").AdditionalProperties
	tool := property(t, provider, "tools").AdditionalProperties

	var page strings.Builder
	fieldTable(&page, "## The file", &root, nil)
	fieldTable(&page, "## A provider: `providers.<name>`", provider, registry.Names())
	fieldTable(&page, "## A tool: `providers.<name>.tools.<operation>`", tool, registry.Names())
	fieldTable(&page, "## A channel: `pages[]`", property(t, &root, "pages").Items, nil)
	for _, adapter := range registry.Names() {
		fmt.Fprintf(&page, "## Adapter `%s`\n\nWhat the settings do, and what follows from failures: [%[1]s](adapters/%[1]s.md).\n\n", adapter)
		fieldTable(&page, "### `providers.<name>."+adapter+"`", property(t, provider, adapter), nil)
		fieldTable(&page, "### `providers.<name>.tools.<operation>."+adapter+"`", property(t, tool, adapter), nil)
	}
	return strings.TrimSpace(page.String()) + "\n"
}

// fieldTable lists the fields of a block, those of the blocks inside of it with
// their paths.
func fieldTable(page *strings.Builder, heading string, block *jsonschema.Schema, except []string) {
	rows := fields(block, "", except)
	fmt.Fprintf(page, "%s\n\n", heading)
	if len(rows) == 0 {
		page.WriteString("There is nothing to set.\n\n")
		return
	}
	page.WriteString("| field | value | default | |\n|---|---|---|---|\n" + strings.Join(rows, "") + "\n")
}

func fields(block *jsonschema.Schema, path string, except []string) (rows []string) {
	if block.Properties == nil {
		return nil
	}
	for pair := block.Properties.Oldest(); pair != nil; pair = pair.Next() {
		if slices.Contains(except, pair.Key) {
			continue
		}
		name, field := path+pair.Key, pair.Value
		rows = append(rows, row(name, field, slices.Contains(block.Required, pair.Key)))
		switch {
		case path == "" && (pair.Key == "providers" || pair.Key == "pages" || pair.Key == "tools"): // tables of their own
		case field.Items != nil && field.Items.Properties != nil:
			rows = append(rows, fields(field.Items, name+"[].", nil)...)
		default:
			rows = append(rows, fields(field, name+".", nil)...)
		}
	}
	return rows
}

func row(name string, field *jsonschema.Schema, required bool) string {
	fallback := ""
	switch {
	case required:
		fallback = "required"
	case field.Default != nil:
		fallback = fmt.Sprintf("`%v`", field.Default)
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind(field), fallback, cell(field.Description))
}

func kind(field *jsonschema.Schema) string {
	switch {
	case len(field.Enum) > 0:
		values := make([]string, len(field.Enum))
		for i, value := range field.Enum {
			values[i] = fmt.Sprintf("`%v`", value)
		}
		return strings.Join(values, ", ")
	case len(field.OneOf) > 0:
		return "block or text"
	case strings.HasSuffix(field.Pattern, `|\$\{`):
		return "duration"
	case field.Type == "array" && field.Items != nil && field.Items.Type == "string":
		return "list of texts"
	case field.Type == "array":
		return "list"
	case field.AdditionalProperties != nil && field.AdditionalProperties.Properties != nil:
		return "blocks by name"
	case field.Type == "object" && field.Properties == nil:
		return "names and texts"
	case field.Type == "object":
		return "block"
	case field.Type == "string":
		return "text"
	case field.Type == "boolean":
		return "`true`, `false`"
	}
	return field.Type
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func property(t *testing.T, of *jsonschema.Schema, name string) *jsonschema.Schema {
	t.Helper()
	found, ok := of.Properties.Get(name)
	if !ok {
		t.Fatalf("the schema has no %s", name)
	}
	return found
}
