package http

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	tupleHeader = "X-Agent-Idempotency-Tuple"

	uuidLength   = 36
	minKeyDigits = 24 // 96 bits
)

// KeySettings says where and how the idempotency key is sent. At most one of
// Header, Query and Field is set.
type KeySettings struct {
	Header      string `yaml:"header,omitempty" jsonschema:"default=Idempotency-Key" jsonschema_description:"The header that carries the key."`
	Query       string `yaml:"query,omitempty" jsonschema_description:"The query parameter that carries the key, instead of a header."`
	Field       string `yaml:"field,omitempty" jsonschema_description:"The top-level body field that carries the key, instead of a header."`
	Format      string `yaml:"format,omitempty" jsonschema:"enum=opaque,enum=uuid,enum=quoted,default=opaque" jsonschema_description:"opaque: idem_v1_ and 32 hex digits. uuid: the same digits as a UUID of version 8. quoted: the opaque key as a structured-field string (RFC 9651)."`
	MaxLength   int    `yaml:"max_length,omitempty" jsonschema:"minimum=24" jsonschema_description:"The longest key that the provider takes. Longer keys lose characters at the front."`
	TupleHeader bool   `yaml:"tuple_header,omitempty" jsonschema_description:"Also send the four parts of the key, percent-encoded and joined by commas, as X-Agent-Idempotency-Tuple."`
}

// keyPlacement without a place sends no key.
type keyPlacement struct {
	header, query, field string
	format               func(key string) string
	tuple                bool
}

// isSent reports whether requests carry the key.
func (k keyPlacement) isSent() bool { return countSet(k.header, k.query, k.field) > 0 }

// over fills in from a profile what the configuration leaves out.
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
	if placement.header != "" && !validHeaderName(placement.header) {
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

// lastOf shortens from the front: the prefix goes first, the digits of the
// hash stay as long as they can.
func lastOf(key string, length int) string {
	if length <= 0 || len(key) <= length {
		return key
	}
	return key[len(key)-length:]
}

// uuidOf writes the digits of the key as a UUID of version 8 (RFC 9562), the
// version for values of one's own making.
func uuidOf(key string) string {
	octets, err := hex.DecodeString(lastOf(key, 32))
	if err != nil || len(octets) != 16 {
		return key
	}
	octets[6] = octets[6]&0x0f | 0x80
	octets[8] = octets[8]&0x3f | 0x80
	digits := hex.EncodeToString(octets)
	return strings.Join([]string{digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]}, "-")
}

func tupleOf(t dispatch.Tuple) string {
	parts := []string{t.AgentRunID, t.StepID, t.ToolName, t.BusinessScope}
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, ",")
}
