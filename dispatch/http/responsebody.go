package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/storable"
)

var errBodyTooLarge = errors.New("response body is over max_response_body")

// readBody reads at most limit octets, counted after decompression.
func readBody(body io.Reader, limit int64) ([]byte, error) {
	read, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the response body: %w", err)
	case int64(len(read)) > limit:
		return nil, errBodyTooLarge
	}
	return read, nil
}

func bodyClass(ctx context.Context, err error) string {
	if errors.Is(err, errBodyTooLarge) {
		return "body_too_large"
	}
	if class := failure.Sent(ctx, err); class != "protocol" {
		return class
	}
	return "malformed_body"
}

// isMalformed reports a body that calls itself JSON and is not. No body at
// all is what many providers send with an empty success.
func isMalformed(body []byte, contentType string) bool {
	return len(body) > 0 && storable.DeclaresJSON(contentType) && !json.Valid(body)
}

func mediaType(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	return media
}
