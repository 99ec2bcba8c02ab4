package manifest

import (
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

const formMedia = "application/x-www-form-urlencoded"

// MediaTypes lists the media types of the request body, sorted; none where the
// operation has no body.
func (o *Operation) MediaTypes() []string {
	var types []string
	for media := range o.content() {
		types = append(types, media)
	}
	slices.Sort(types)
	return types
}

// HasField reports whether the request body has a field of that name at its
// top, in any of the media types that hold fields.
func (o *Operation) HasField(name string) bool {
	for media, content := range o.content() {
		if content != nil && (IsJSON(media) || IsForm(media)) && hasProperty(content.Schema, name, map[*openapi3.Schema]bool{}) {
			return true
		}
	}
	return false
}

// IsJSON reports whether a media type is JSON, such as application/json or
// application/vnd.api+json.
func IsJSON(media string) bool {
	media = essence(media)
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// IsForm reports whether a media type is that of a URL-encoded form.
func IsForm(media string) bool { return essence(media) == formMedia }

func essence(media string) string {
	media, _, _ = strings.Cut(media, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

func (o *Operation) content() openapi3.Content {
	if o.spec.RequestBody == nil || o.spec.RequestBody.Value == nil {
		return nil
	}
	return o.spec.RequestBody.Value.Content
}

// hasProperty looks through composed schemas; seen keeps it from following a
// schema that contains itself.
func hasProperty(reference *openapi3.SchemaRef, name string, seen map[*openapi3.Schema]bool) bool {
	if reference == nil || reference.Value == nil || seen[reference.Value] {
		return false
	}
	schema := reference.Value
	seen[schema] = true
	if schema.Properties[name] != nil {
		return true
	}
	for _, part := range slices.Concat(schema.AllOf, schema.AnyOf, schema.OneOf) {
		if hasProperty(part, name, seen) {
			return true
		}
	}
	return false
}
