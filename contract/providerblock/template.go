package providerblock

import (
	"encoding/json"
	"regexp"
	"strings"
)

var (
	placeholder = regexp.MustCompile(`\{([^{}]*)\}`)
	identifier  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// pathTemplate turns OpenAPI's {id} into the adapter's {.payload.id}.
func pathTemplate(path string) string {
	var template strings.Builder
	end := 0
	for _, at := range placeholder.FindAllStringSubmatchIndex(path, -1) {
		template.WriteString(literal(path[end:at[0]]) + fromPayload(path[at[2]:at[3]]))
		end = at[1]
	}
	return template.String() + literal(path[end:])
}

func literal(text string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}

func pathParameters(path string) []string {
	var names []string
	for _, match := range placeholder.FindAllStringSubmatch(path, -1) {
		names = append(names, match[1])
	}
	return names
}

func templates(names []string) map[string]string {
	filled := make(map[string]string, len(names))
	for _, name := range names {
		filled[name] = fromPayload(name)
	}
	return filled
}

func fromPayload(name string) string { return "{.payload" + index(name) + "}" }

// withoutFields is the payload less what goes elsewhere; empty where all of it
// is the body, which is then sent octet for octet.
func withoutFields(names []string) string {
	if len(names) == 0 {
		return ""
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = "." + strings.TrimPrefix(index(name), ".")
	}
	return ".payload | del(" + strings.Join(paths, ", ") + ")"
}

// index is jq for a field: .id, or ["charge-id"] for what is no identifier.
func index(name string) string {
	if identifier.MatchString(name) {
		return "." + name
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return "." // marshalling a string does not fail
	}
	return "[" + string(quoted) + "]"
}
