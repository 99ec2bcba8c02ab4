package protocol

import (
	"encoding/json"
	"slices"

	"github.com/agentoutbox/drainer/dispatch"
)

const version = 1

// Hello opens the conversation. Both sides speak the highest version that
// both name.
type Hello struct {
	Protocol []int  `json:"protocol"`
	Name     string `json:"name"`
	// Operations are what an adapter has, each with the most that repeating it
	// can be promised to do. An adapter that lists none leaves it to the
	// configuration.
	Operations map[string]dispatch.Class `json:"operations,omitempty"`
}

// Greeting is the hello line of drainer, with its newline.
func Greeting() []byte {
	line, _ := json.Marshal(Hello{Protocol: []int{version}, Name: "drainer"}) // a constant
	return append(line, '\n')
}

// ParseHello reads an adapter's hello. One that is no use is named by its
// error class: "invalid_hello" or "protocol_version".
func ParseHello(text []byte) (hello Hello, class string) {
	mistakes, err := readObject(text, map[string]any{"protocol": &hello.Protocol, "name": &hello.Name, "operations": &hello.Operations})
	if err != nil || len(mistakes) > 0 || !hello.isValid() {
		return Hello{}, "invalid_hello"
	}
	if !slices.Contains(hello.Protocol, version) {
		return Hello{}, "protocol_version"
	}
	return hello, ""
}

func (h Hello) isValid() bool {
	for operation, class := range h.Operations {
		if operation == "" || !slices.Contains(dispatch.Classes(), class) {
			return false
		}
	}
	return h.Name != "" && len(h.Protocol) > 0
}

// Refusal is the error class of a call that the adapter does not have, or
// whose configuration promises more than the adapter does; it is empty if the
// call may be made. To promise less is safe.
func (h Hello) Refusal(operation string, configured dispatch.Class) string {
	if h.Operations == nil {
		return ""
	}
	promised, known := h.Operations[operation]
	safestFirst := dispatch.Classes()
	switch {
	case !known:
		return "unknown_operation"
	case slices.Index(safestFirst, configured) < slices.Index(safestFirst, promised):
		return "class_not_promised"
	}
	return ""
}
