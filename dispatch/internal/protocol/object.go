package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

var errNoObject = errors.New("not one JSON object")

// readObject fills in the fields of a message by their names, and names those
// that are mistyped or stand there twice: which of two outcomes is meant, or
// whose a result with two ids is, nobody can tell. A field counts under its
// exact name; encoding/json would take "ID" for "id". What has no name here is
// passed over.
func readObject(text []byte, fields map[string]any) (mistakes []string, err error) {
	object := json.NewDecoder(bytes.NewReader(text))
	seen := map[string]bool{}
	if start, err := object.Token(); err != nil || start != json.Delim('{') {
		return nil, errNoObject
	}
	for object.More() {
		token, err := object.Token()
		if err != nil {
			return nil, errNoObject
		}
		name, _ := token.(string) // the decoder takes nothing else for a name
		into, known := fields[name]
		if !known || seen[name] {
			into = &json.RawMessage{}
		}
		isMistake := known && seen[name]
		seen[name] = true
		if err := object.Decode(into); err != nil {
			if !isMistyped(err) {
				return nil, errNoObject
			}
			isMistake = true
		}
		if isMistake {
			mistakes = append(mistakes, name)
		}
	}
	return mistakes, atEnd(object)
}

func isMistyped(err error) bool {
	var mistyped *json.UnmarshalTypeError
	return errors.As(err, &mistyped)
}

// atEnd sees to it that the object is whole, and that nothing follows it.
func atEnd(object *json.Decoder) error {
	if _, err := object.Token(); err != nil {
		return errNoObject
	}
	if _, err := object.Token(); !errors.Is(err, io.EOF) {
		return errNoObject
	}
	return nil
}
