package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

const hidden = "[hidden]"

// Preview writes the request as it would be sent. What is the same for all intents may be a credential, in a header, in
// the query or in the path of the provider, and a signature works as one: these are left out.
func (a *Adapter) Preview(ctx context.Context, request dispatch.Request) (string, error) {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return "", fmt.Errorf("no tool of this configuration is named %q", request.Tuple.ToolName)
	}
	call, err := tool.render(ctx, request)
	if err != nil { // it may quote a value
		if problem := render.Problem(err); problem != nil {
			return "", errors.New(problem.Title + ": " + problem.Detail)
		}
		return "", errors.New("the request cannot be rendered")
	}
	var written strings.Builder
	fmt.Fprintf(&written, "%s %s\n", call.Method, tool.shownAddress(call.URL))
	for _, name := range slices.Sorted(maps.Keys(call.Header)) {
		value := hidden
		if tool.isOfIntent(name) {
			value = strings.Join(call.Header[name], ", ")
		}
		fmt.Fprintf(&written, "%s: %s\n", name, value)
	}
	if call.Body != nil {
		var body bytes.Buffer
		if _, err := io.Copy(&body, call.Body); err != nil {
			return "", err
		}
		written.WriteString("\n" + body.String())
	}
	return written.String(), nil
}

// shownAddress hides the path of the provider, which is all of the path where requests are signed: their tools have none
// of their own.
func (t *tool) shownAddress(address *url.URL) string {
	base := strings.TrimSuffix(t.provider.base.EscapedPath(), "/")
	own := &url.URL{RawPath: strings.TrimPrefix(address.RawPath, base)}
	own.Path, _ = url.PathUnescape(own.RawPath) // it is a part of what could be unescaped
	shown := own.EscapedPath()
	switch {
	case t.provider.sign != nil && shown != "/":
		shown = "/" + hidden
	case base != "":
		shown = "/" + hidden + shown
	}
	shown = address.Scheme + "://" + address.Host + shown
	separator := "?"
	for _, name := range slices.Sorted(maps.Keys(address.Query())) {
		value := hidden
		if template, isTools := t.query[name]; !isTools || isIntents(template) {
			value = url.QueryEscape(address.Query().Get(name))
		}
		shown += separator + url.QueryEscape(name) + "=" + value
		separator = "&"
	}
	return shown
}

// isIntents reports a value that the intent alone gives: beside a placeholder, and in an expression, there may be a credential.
func isIntents(template render.Template) bool {
	return !slices.ContainsFunc(template, func(piece render.Piece) bool {
		return piece.Literal != "" || piece.Value != nil && !plainPath.MatchString(piece.Value.Source())
	})
}

// plainPath is an expression that only takes a field out of the intent.
var plainPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_]*)+$`)

// isOfIntent reports a header that the intent gives its value, or that cannot be a credential.
func (t *tool) isOfIntent(name string) bool {
	if _, isProviders := t.provider.headers[name]; isProviders {
		return false
	}
	for own, template := range t.headers {
		if http.CanonicalHeaderKey(own) == name && name != "Content-Type" {
			return isIntents(template)
		}
	}
	return slices.Contains([]string{t.provider.key.header, tupleHeader, "User-Agent", "Content-Type", "Traceparent"}, name)
}
