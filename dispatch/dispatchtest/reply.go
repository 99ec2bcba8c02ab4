package dispatchtest

import (
	"encoding/json"
	"errors"
	"net/http"
)

// drop closes the connection without a reply.
func drop() { panic(http.ErrAbortHandler) }

// writeReply sends an answer; an error is a problem of RFC 9457.
func writeReply(w http.ResponseWriter, status int, reply json.RawMessage) {
	contentType := "application/json"
	if status >= 400 {
		contentType = "application/problem+json"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(reply) // the client may be gone; the ledger knows
}

func receipt(path string) func(id string) json.RawMessage {
	return func(id string) json.RawMessage {
		return encode(struct {
			ID     string `json:"id,omitempty"`
			Object string `json:"object"`
			Path   string `json:"path"`
		}{id, "effect", path})
	}
}

func problem(status int, title string) json.RawMessage {
	return encode(struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
	}{title, status})
}

func encode(reply any) json.RawMessage {
	encoded, err := json.Marshal(reply)
	if err != nil {
		panic(errors.New("dispatchtest: a reply cannot be written as JSON"))
	}
	return encoded
}
