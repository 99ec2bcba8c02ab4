package http

import (
	"context"
	"maps"
	"net/http"
	"slices"
)

// prepare makes once what all intents of a tool have alike. The provider must be
// known to be good.
func (t *tool) prepare() {
	t.fixed = t.fixedHeader()
	if !t.isAddressed() && t.provider.key.query == "" {
		t.address, _ = t.target(context.Background(), nil, "") // what fails here is refused with each intent
	}
}

// isAddressed reports that intents go to places of their own.
func (t *tool) isAddressed() bool {
	return hasValue(t.path) || hasValue(slices.Collect(maps.Values(t.query)))
}

// fixedHeader leaves it to the provider's own headers to say otherwise.
func (t *tool) fixedHeader() http.Header {
	header := http.Header{"User-Agent": {"drainer"}}
	if t.body.contentType != "" {
		header.Set("Content-Type", t.body.contentType)
	}
	maps.Copy(header, t.provider.headers)
	return header
}
