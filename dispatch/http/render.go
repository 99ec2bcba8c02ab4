package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
	"github.com/agentoutbox/drainer/internal/jq"
	"golang.org/x/net/http/httpguts"
)

// path is the path of a tool's URL. A value from the payload stays inside the segment of its placeholder.
type path []render.Template

var errUnsafeSegment = errors.New("a path segment would be empty, climb the path or hold a slash")

func parsePath(text string) (path, error) {
	if !strings.HasPrefix(text, "/") {
		return nil, errors.New("path must start with a slash")
	}
	whole, err := render.ParseTemplate(text)
	if err != nil {
		return nil, err
	}
	for _, piece := range whole {
		if strings.ContainsAny(piece.Literal, "?#") {
			return nil, errors.New("path has a query or a fragment; use query")
		}
		if _, err := url.PathUnescape(piece.Literal); err != nil {
			return nil, errors.New("path has a % that escapes nothing")
		}
	}
	return segments(whole), nil
}

// segments cuts a template at the slashes of its literals.
func segments(whole render.Template) path {
	var cut path
	var current render.Template
	for _, part := range whole {
		if part.Value != nil {
			current = append(current, part)
			continue
		}
		for i, literal := range strings.Split(part.Literal, "/") {
			if i > 0 {
				cut = append(cut, current)
				current = nil
			}
			if literal != "" {
				current = append(current, render.Piece{Literal: literal})
			}
		}
	}
	return append(cut, current)
}

// below returns the URL of the path under base. Scheme and host are those of base.
func (p path) below(ctx context.Context, base *url.URL, input any) (*url.URL, error) {
	written := make([]string, len(p))
	for i, segment := range p {
		text, err := segment.Render(ctx, input, escapeSegment)
		if err != nil {
			return nil, render.In("path", err)
		}
		if segment.HasValue() && isUnsafe(text) {
			return nil, render.Because("path", errUnsafeSegment)
		}
		written[i] = text
	}
	target := *base
	target.RawPath = strings.TrimSuffix(base.EscapedPath(), "/") + strings.Join(written, "/")
	var err error
	target.Path, err = url.PathUnescape(target.RawPath)
	return &target, err
}

// escapeSegment refuses a slash, escaped or not. Many servers decode a path, some even twice, before they split it,
// and would find more segments than the tool has.
func escapeSegment(text string) (string, error) {
	lower := strings.ToLower(text)
	if strings.ContainsFunc(text, isSlash) || strings.Contains(lower, "%2f") || strings.Contains(lower, "%5c") {
		return "", errUnsafeSegment
	}
	return url.PathEscape(text), nil
}

// isUnsafe also refuses a segment that climbs the path on a server that decodes the path before it splits it.
func isUnsafe(segment string) bool {
	plain, err := url.PathUnescape(segment)
	if err != nil || plain == "" {
		return true
	}
	for _, part := range strings.FieldsFunc(plain, isSlash) {
		if part == "." || part == ".." {
			return true
		}
	}
	return strings.Trim(plain, `/\`) == ""
}

func isSlash(r rune) bool { return r == '/' || r == '\\' }

// field is the body field that carries the idempotency key. Without a name, the body carries no key.
type field struct{ name, value string }

// encoding writes a body: the agent's payload, or the mapped value if the tool has a mapping.
type encoding struct {
	contentType string
	encode      func(payload json.RawMessage, mapped *any, key field) ([]byte, error)
}

var encodings = map[string]encoding{
	"json": {"application/json", encodeJSON},
	"form": {"application/x-www-form-urlencoded", encodeForm},
	"none": {"", func(json.RawMessage, *any, field) ([]byte, error) { return nil, nil }},
}

// encodeJSON forwards the payload byte for byte unless it is mapped. A round trip through Go values would change the
// order of fields and the form of numbers.
func encodeJSON(payload json.RawMessage, mapped *any, key field) ([]byte, error) {
	body := []byte(payload)
	if mapped != nil {
		body = jq.Encode(*mapped)
	}
	if key.name == "" {
		return body, nil
	}
	return insertField(body, key)
}

var errKeyField = errors.New("the body is no object, or already has the field of the idempotency key")

// insertField puts the key before the other fields and leaves their bytes unchanged.
func insertField(object []byte, key field) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil || fields == nil {
		return nil, errKeyField
	}
	for name := range fields {
		if sameField(name, key.name) {
			return nil, errKeyField
		}
	}
	entry, _ := json.Marshal(map[string]string{key.name: key.value}) // strings always have a JSON form
	if len(fields) == 0 {
		return entry, nil
	}
	rest := bytes.TrimLeft(object, " \t\r\n")[1:]
	return append(append(entry[:len(entry)-1], ','), rest...), nil
}

// encodeForm writes nested values as PHP, Rails and Stripe read them: metadata[order]=7 and items[0]=a. Fields are
// sorted.
func encodeForm(payload json.RawMessage, mapped *any, key field) ([]byte, error) {
	var value any
	if mapped != nil {
		value = *mapped
	} else if decoded, err := jq.Decode(payload); err == nil {
		value = decoded
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("a form body needs an object, and this is %s", jq.TypeOf(value))
	}
	form := url.Values{}
	addFields(form, object, func(name string) string { return name })
	if key.name != "" {
		for name := range form {
			outer, _, _ := strings.Cut(name, "[")
			if sameField(name, key.name) || sameField(outer, key.name) {
				return nil, errKeyField
			}
		}
		form.Set(key.name, key.value)
	}
	return []byte(form.Encode()), nil
}

// sameField compares names as lenient servers do, which may read Request_Id as request_id.
func sameField(one, other string) bool {
	plain := strings.NewReplacer("_", "", "-", "", " ", "")
	return strings.EqualFold(plain.Replace(one), plain.Replace(other))
}

// addFields adds the fields in the order of their names. {"a[b]": 1, "a": {"b": 2}} has two values of one name, and
// a retry must send the same bytes as the first attempt.
func addFields(form url.Values, object map[string]any, named func(string) string) {
	for _, name := range slices.Sorted(maps.Keys(object)) {
		addField(form, named(name), object[name])
	}
}

func addField(form url.Values, name string, value any) {
	switch value := value.(type) {
	case nil:
		form.Add(name, "")
	case string:
		form.Add(name, value)
	case map[string]any:
		addFields(form, value, func(inner string) string { return name + "[" + inner + "]" })
	case []any:
		for i, value := range value {
			addField(form, name+"["+strconv.Itoa(i)+"]", value)
		}
	default:
		form.Add(name, string(jq.Encode(value)))
	}
}

const (
	tupleHeader = "X-Agent-Idempotency-Tuple"

	uuidLength   = 36
	minKeyDigits = 24 // 96 bits
)

// KeySettings defines where and how the idempotency key is sent. At most one of Header, Query and Field is set.
type KeySettings struct {
	Header      string `yaml:"header,omitempty" jsonschema:"default=Idempotency-Key" jsonschema_description:"The header with the key."`
	Query       string `yaml:"query,omitempty" jsonschema_description:"A query parameter instead."`
	Field       string `yaml:"field,omitempty" jsonschema_description:"A top-level field of the body instead."`
	Format      string `yaml:"format,omitempty" jsonschema:"enum=opaque,enum=uuid,enum=quoted,default=opaque" jsonschema_description:"opaque: idem_v1_ and 32 hex digits. uuid: the same digits as a UUID of version 8. quoted: the opaque key as a structured-field string (RFC 9651)."`
	MaxLength   int    `yaml:"max_length,omitempty" jsonschema:"minimum=24" jsonschema_description:"The longest key. Longer ones lose characters at the front."`
	TupleHeader bool   `yaml:"tuple_header,omitempty" jsonschema_description:"Also send the four-tuple, percent-encoded and joined by commas, as X-Agent-Idempotency-Tuple."`
}

// keyPlacement is KeySettings, checked. If header, query and field are empty, no key is sent.
type keyPlacement struct {
	header, query, field string
	format               func(key string) string
	tuple                bool
}

// over fills in from a profile the settings that the configuration omits.
func (k KeySettings) over(profile KeySettings) KeySettings {
	if countSet(k.Header, k.Query, k.Field) == 0 {
		k.Header, k.Query, k.Field = profile.Header, profile.Query, profile.Field
	}
	k.Format = cmp.Or(k.Format, profile.Format)
	return k
}

func newKeyPlacement(settings KeySettings) (keyPlacement, error) {
	placement := keyPlacement{
		header: http.CanonicalHeaderKey(settings.Header),
		query:  settings.Query,
		field:  settings.Field,
		tuple:  settings.TupleHeader,
	}
	var problems []error
	if countSet(settings.Header, settings.Query, settings.Field) > 1 {
		problems = append(problems, errors.New("idempotency_key: set one of header, query and field"))
	}
	if placement.header != "" && !httpguts.ValidHeaderFieldName(placement.header) {
		problems = append(problems, errors.New("idempotency_key.header is not a header name"))
	}
	format, err := keyFormat(settings.Format, settings.MaxLength)
	placement.format = format
	return placement, errors.Join(append(problems, err)...)
}

func countSet(values ...string) (count int) {
	for _, value := range values {
		if value != "" {
			count++
		}
	}
	return count
}

func keyFormat(name string, maxLength int) (func(string) string, error) {
	tooShort := func(shortest int) error {
		if maxLength == 0 || maxLength >= shortest {
			return nil
		}
		return fmt.Errorf("idempotency_key.max_length is under %d, too short to keep keys apart", shortest)
	}
	switch name {
	case "", "opaque":
		return func(key string) string { return lastOf(key, maxLength) }, tooShort(minKeyDigits)
	case "uuid":
		return uuidOf, tooShort(uuidLength)
	case "quoted":
		return func(key string) string { return `"` + lastOf(key, maxLength-2) + `"` }, tooShort(minKeyDigits + 2)
	}
	return nil, errors.New("idempotency_key.format is none of opaque, uuid and quoted")
}

// lastOf shortens a key from its front, so that the prefix is lost before digits of the hash.
func lastOf(key string, length int) string {
	if length <= 0 || len(key) <= length {
		return key
	}
	return key[len(key)-length:]
}

// uuidOf writes the digits of the key as a UUID of version 8 (RFC 9562), the version for custom formats.
func uuidOf(key string) string {
	raw, err := hex.DecodeString(lastOf(key, 32))
	if err != nil || len(raw) != 16 {
		return key
	}
	raw[6] = raw[6]&0x0f | 0x80
	raw[8] = raw[8]&0x3f | 0x80
	digits := hex.EncodeToString(raw)
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-")
}

func tupleOf(t dispatch.Tuple) string {
	parts := []string{t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope}
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, ",")
}
