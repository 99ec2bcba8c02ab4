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

// Preview returns the request as text, as it would be sent, without secrets. A value that is the same for all
// intents may be a credential, whether in a header, in the query or in the provider's path, and a signature works as
// one. So Preview hides all of these.
func (a *Adapter) Preview(ctx context.Context, request dispatch.Request) (string, error) {
	tool, ok := a.tools[request.Tuple.Operation()]
	if !ok {
		return "", fmt.Errorf("no tool of this configuration is named %q", request.Tuple.ToolName)
	}
	call, err := tool.render(ctx, request)
	if err != nil { // the error may quote a value
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

// shownAddress hides the provider's path. If requests are signed, it hides the whole path, since such tools have no
// path of their own.
func (t *tool) shownAddress(address *url.URL) string {
	base := strings.TrimSuffix(t.provider.base.EscapedPath(), "/")
	own := &url.URL{RawPath: strings.TrimPrefix(address.RawPath, base)}
	own.Path, _ = url.PathUnescape(own.RawPath) // cannot fail: it is a part of an escaped path that was unescaped before
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

// isIntents reports whether the intent alone gives the value. Text beside a placeholder, or in an expression, may be
// a credential.
func isIntents(template render.Template) bool {
	return !slices.ContainsFunc(template, func(piece render.Piece) bool {
		return piece.Literal != "" || piece.Value != nil && !plainPath.MatchString(piece.Value.Source())
	})
}

// plainPath matches an expression that only reads a field of the intent.
var plainPath = regexp.MustCompile(`^(\.[A-Za-z_][A-Za-z0-9_]*)+$`)

// isOfIntent reports whether the header's value comes from the intent, or cannot be a credential.
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
