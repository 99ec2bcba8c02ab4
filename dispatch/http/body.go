package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/agentoutbox/drainer/dispatch/internal/render"
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
		written, err := jq.Encode(*mapped)
		if err != nil {
			return nil, err
		}
		body = written
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
	entry, err := json.Marshal(map[string]string{key.name: key.value})
	if err != nil {
		return nil, fmt.Errorf("writing the key field: %w", err)
	}
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
		if err := addField(form, name, value); err != nil {
			return nil, err
		}
	}
	if key.name != "" {
		if form.Has(key.name) {
			return nil, errKeyField
		}
		form.Set(key.name, key.value)
	}
	return []byte(form.Encode()), nil
}

func addField(form url.Values, name string, value any) error {
	switch value := value.(type) {
	case nil:
		form.Add(name, "")
		return nil
	case map[string]any:
		for inner, value := range value {
			if err := addField(form, name+"["+inner+"]", value); err != nil {
				return err
			}
		}
		return nil
	case []any:
		for i, value := range value {
			if err := addField(form, name+"["+strconv.Itoa(i)+"]", value); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := render.Scalar(value)
	if err != nil {
		return err
	}
	form.Add(name, text)
	return nil
}
