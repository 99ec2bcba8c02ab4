package http

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/agentoutbox/drainer/dispatch/internal/render"
)

// path is the part of a URL that a tool names. Values from the payload stay
// inside the segment in which their placeholder stands.
type path []render.Template

var errUnsafeSegment = errors.New("a path segment would be empty or climb the path")

func parsePath(text string) (path, error) {
	if !strings.HasPrefix(text, "/") {
		return nil, errors.New("path must start with a slash")
	}
	whole, err := render.ParseTemplate(text)
	if err != nil {
		return nil, err
	}
	for _, piece := range whole {
		if strings.ContainsAny(piece.Literal, "?#") {
			return nil, errors.New("path has a query or a fragment; use query")
		}
		if _, err := url.PathUnescape(piece.Literal); err != nil {
			return nil, errors.New("path has a % that escapes nothing")
		}
	}
	return segments(whole), nil
}

// segments cuts a template at the slashes of its literals.
func segments(whole render.Template) path {
	var cut path
	var current render.Template
	for _, part := range whole {
		if part.Value != nil {
			current = append(current, part)
			continue
		}
		for i, literal := range strings.Split(part.Literal, "/") {
			if i > 0 {
				cut = append(cut, current)
				current = nil
			}
			if literal != "" {
				current = append(current, render.Piece{Literal: literal})
			}
		}
	}
	return append(cut, current)
}

// below is the URL of the path under base. Scheme and host are base's own.
func (p path) below(ctx context.Context, base *url.URL, input any) (*url.URL, error) {
	written := make([]string, len(p))
	for i, segment := range p {
		text, err := segment.Render(ctx, input, escapeSegment)
		if err != nil {
			return nil, err
		}
		if segment.HasValue() && isUnsafe(text) {
			return nil, errUnsafeSegment
		}
		written[i] = text
	}
	target := *base
	target.RawPath = strings.TrimSuffix(base.EscapedPath(), "/") + strings.Join(written, "/")
	var err error
	target.Path, err = url.PathUnescape(target.RawPath)
	return &target, err
}

func escapeSegment(text string) (string, error) { return url.PathEscape(text), nil }

// isUnsafe also refuses what becomes a climb at a server that decodes the
// path before it splits it.
func isUnsafe(segment string) bool {
	plain, err := url.PathUnescape(segment)
	if err != nil || plain == "" {
		return true
	}
	for _, part := range strings.FieldsFunc(plain, isSlash) {
		if part == "." || part == ".." {
			return true
		}
	}
	return strings.Trim(plain, `/\`) == ""
}

func isSlash(r rune) bool { return r == '/' || r == '\\' }
