package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch/internal/failure"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
	"github.com/agentoutbox/drainer/dispatch/internal/retryafter"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"

	maxControlOctets = 16 << 20 // of an answer to anything but a call
)

var (
	errUnanswered = errors.New("the call got no answer")
	errTooLarge   = errors.New("the answer is longer than max_response_body")
)

// wireError is a request that got no response. It repeats nothing of a URL.
type wireError struct{ class string }

func (e *wireError) Error() string { return "no response: " + e.class }

// wire carries one session's HTTP. It gathers the evidence of each call, and
// keeps a call's bad luck from the library, which would end the session over
// it and leave every other call without its answer.
type wire struct {
	transport *onesend.Transport
	header    http.Header
	limit     int64
	life      context.Context // ends what is not a call

	mu      sync.Mutex
	version string
	refusal refusal
}

// refusal is the last response to something else than a call that was no success.
type refusal struct {
	status     int
	retryAfter time.Duration
}

// RoundTrip implements http.RoundTripper for the library.
func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	outgoing := w.dress(request)
	c := writtenCall(request.Context())
	switch {
	case c == nil:
		return w.control(outgoing)
	case request.Method == http.MethodGet:
		return w.resume(outgoing, c), nil
	}
	return w.call(outgoing, c)
}

// dress adds what the configuration and the session want.
func (w *wire) dress(request *http.Request) *http.Request {
	outgoing := request.Clone(request.Context())
	outgoing.GetBody = nil // with it, the transport could send the body again
	outgoing.Header.Set("User-Agent", "drainer")
	for name, values := range w.header {
		outgoing.Header[name] = values
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.version != "" && outgoing.Header.Get(versionHeader) == "" {
		outgoing.Header.Set(versionHeader, w.version)
	}
	return outgoing
}

func (w *wire) speak(version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version = version
}

func (w *wire) call(request *http.Request, c *call) (*http.Response, error) {
	if !c.begin() {
		return nil, errSecondCall
	}
	response, failed := w.transport.Send(request)
	if failed != nil {
		c.fail(failed.Sent, failed.Class)
		return nil, errUnanswered
	}
	c.responded(response.StatusCode, retryafter.Header(response.Header, time.Now()), request.Header.Get(sessionHeader) != "")
	if response.StatusCode == http.StatusOK && mediaType(response) == "text/event-stream" {
		response.Body = guard(request.Context(), response.Body, c, w.limit)
		return response, nil
	}
	return w.readWhole(request.Context(), response, c)
}

// readWhole reads the answer at once, and lets the library have it only where
// it is one.
func (w *wire) readWhole(ctx context.Context, response *http.Response, c *call) (*http.Response, error) {
	defer response.Body.Close()
	body, err := io.ReadAll(&limitedReader{response.Body, w.limit})
	answer, isAnswer := decodeAnswer(body, c.id)
	refused := response.StatusCode < 200 || response.StatusCode > 299
	switch {
	case err == nil && isAnswer:
		c.answered(answer)
	case refused:
		c.fail(true, "http_"+strconv.Itoa(response.StatusCode))
	default:
		c.fail(true, bodyClass(ctx, err))
	}
	if refused || !isAnswer || err != nil {
		return nil, errUnanswered
	}
	response.Header.Set("Content-Type", "application/json")
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// bodyClass names what is wrong with a body that is no answer.
func bodyClass(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "protocol"
	case errors.Is(err, errTooLarge):
		return "body_too_large"
	}
	return failure.Sent(ctx, err)
}

// decodeAnswer takes the answer to this call alone: an answer to another one
// must not end an intent that it is not about.
func decodeAnswer(text []byte, id jsonrpc.ID) (*jsonrpc.Response, bool) {
	message, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil, false
	}
	response, ok := message.(*jsonrpc.Response)
	return response, ok && response.ID == id
}

// resume asks for the rest of a stream that broke off. It always brings a
// stream, at worst one that says that there is no more.
func (w *wire) resume(request *http.Request, c *call) *http.Response {
	if c.isOver() {
		return lastWords(request, c)
	}
	response, failed := w.transport.Send(request)
	switch {
	case failed != nil:
		c.interrupt(failed.Class)
		return lastWords(request, c)
	case response.StatusCode != http.StatusOK || mediaType(response) != "text/event-stream":
		response.Body.Close()
		c.interrupt("reset")
		return lastWords(request, c)
	}
	response.Body = guard(request.Context(), response.Body, c, w.limit)
	return response
}

// lastWords is a stream that ends the library's wait for an answer.
func lastWords(request *http.Request, c *call) *http.Response {
	c.abandon("reset")
	text, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: c.id, Error: &jsonrpc.Error{Code: codeInternalError, Message: errUnanswered.Error()}})
	if err != nil {
		text = nil // the library then gives up by itself
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body:   io.NopCloser(bytes.NewReader(append(append([]byte("data: "), text...), "\n\n"...))),
	}
}

// control sends what is not a call: the handshake, lists, notifications.
func (w *wire) control(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	stop := context.AfterFunc(w.life, cancel)
	release := func() { stop(); cancel() }
	response, failed := w.transport.Send(request.WithContext(ctx))
	if failed != nil {
		release()
		return nil, &wireError{failed.Class}
	}
	if response.StatusCode > 299 {
		w.refused(refusal{response.StatusCode, retryafter.Header(response.Header, time.Now())})
	}
	response.Body = &controlBody{limitedReader{response.Body, maxControlOctets}, response.Body, release}
	return response, nil
}

func (w *wire) refused(r refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusal = r
}

func (w *wire) lastRefusal() refusal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refusal
}

type controlBody struct {
	limitedReader
	body    io.Closer
	release func()
}

func (b *controlBody) Close() error {
	defer b.release()
	return b.body.Close()
}

// limitedReader fails, rather than ends, where there is too much to read.
type limitedReader struct {
	from io.Reader
	left int64
}

func (r *limitedReader) Read(octets []byte) (int, error) {
	n, err := r.from.Read(octets)
	if r.left -= int64(n); r.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

func mediaType(response *http.Response) string {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}
