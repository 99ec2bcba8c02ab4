package render

import (
	"errors"

	"github.com/agentoutbox/drainer/internal/jq"
)

// Scalar writes a value as text, for the places that hold only text.
func Scalar(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return value, nil
	case nil, []any, map[string]any:
		return "", errors.New("jq gave null, an array or an object where text belongs")
	}
	return string(jq.Encode(value)), nil
}
