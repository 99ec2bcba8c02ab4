package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"strconv"

	"github.com/agentoutbox/drainer/internal/jq"
)

// field is the body field that carries the idempotency key; without a name
// the body carries none.
type field struct{ name, value string }

// encoding writes a body. payload is what the agent wrote; mapped, if there
// is a mapping, is what to send in its stead.
type encoding struct {
	contentType string
	encode      func(payload json.RawMessage, mapped *any, key field) ([]byte, error)
}

var encodings = map[string]encoding{
	"json": {"application/json", encodeJSON},
	"form": {"application/x-www-form-urlencoded", encodeForm},
	"none": {"", func(json.RawMessage, *any, field) ([]byte, error) { return nil, nil }},
}

// encodeJSON forwards the payload octet for octet unless it is mapped: a
// round trip through Go values would reorder and renumber it.
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

// insertField puts the key in front of the other fields and leaves their
// octets alone.
func insertField(object []byte, key field) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil || fields == nil {
		return nil, errKeyField
	}
	if _, taken := fields[key.name]; taken {
		return nil, errKeyField
	}
	entry, _ := json.Marshal(map[string]string{key.name: key.value}) // strings always have a JSON form
	if len(fields) == 0 {
		return entry, nil
	}
	rest := bytes.TrimLeft(object, " \t\r\n")[1:]
	return append(append(entry[:len(entry)-1], ','), rest...), nil
}

// encodeForm writes nested values the way PHP, Rails and Stripe read them:
// metadata[order]=7 and items[0]=a. Fields are sorted.
func encodeForm(payload json.RawMessage, mapped *any, key field) ([]byte, error) {
	var value any
	if mapped != nil {
		value = *mapped
	} else if decoded, err := jq.Decode(payload); err == nil {
		value = decoded
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("a form body needs an object")
	}
	form := url.Values{}
	for name, value := range object {
		addField(form, name, value)
	}
	if key.name != "" {
		if form.Has(key.name) {
			return nil, errKeyField
		}
		form.Set(key.name, key.value)
	}
	return []byte(form.Encode()), nil
}

func addField(form url.Values, name string, value any) {
	switch value := value.(type) {
	case nil:
		form.Add(name, "")
	case string:
		form.Add(name, value)
	case map[string]any:
		for inner, value := range value {
			addField(form, name+"["+inner+"]", value)
		}
	case []any:
		for i, value := range value {
			addField(form, name+"["+strconv.Itoa(i)+"]", value)
		}
	default:
		form.Add(name, string(jq.Encode(value)))
	}
}
