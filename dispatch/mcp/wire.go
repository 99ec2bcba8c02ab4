package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentoutbox/drainer/dispatch/internal/evidence"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"

	maxControlBytes = 16 << 20 // the longest answer to any request that is not a call
)

var (
	errUnanswered = errors.New("the call got no answer")
	errTooLarge   = errors.New("the answer is longer than max_response_body")
)

// wireError is the error of a request that got no response. Its text repeats nothing of the URL.
type wireError struct{ class string }

func (e *wireError) Error() string { return "no response: " + e.class }

// wire carries one session's HTTP. It gathers the evidence of each call. It hides a call's failure from the library,
// which would otherwise end the session and leave the other calls without their answers.
type wire struct {
	transport *onesend.Transport
	header    http.Header
	limit     int64
	life      context.Context // its end cancels all requests that are not calls

	mu      sync.Mutex
	version string
}

// refusal is the error response to a request that is not a call.
type refusal struct {
	status     int
	retryAfter time.Duration
}

type refusalKey struct{}

// noteRefusal makes a handshake, or the listing of tools, record the last refusal.
func noteRefusal(ctx context.Context) (context.Context, *atomic.Pointer[refusal]) {
	last := &atomic.Pointer[refusal]{}
	return context.WithValue(ctx, refusalKey{}, last), last
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

// dress adds the headers of the configuration and of the session.
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
	c.responded(response.StatusCode, evidence.RetryAfter(response.Header, time.Now()), request.Header.Get(sessionHeader) != "")
	if response.StatusCode == http.StatusOK && mediaType(response) == "text/event-stream" {
		response.Body = guard(request.Context(), response.Body, c, w.limit)
		return response, nil
	}
	return w.readWhole(request.Context(), response, c)
}

// readWhole reads the whole answer. It passes the response to the library only if it is an answer to this call.
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

// bodyClass returns the error class of a body that is not an answer.
func bodyClass(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return "protocol"
	case errors.Is(err, errTooLarge):
		return "body_too_large"
	}
	return evidence.Sent(ctx, err)
}

// decodeAnswer accepts only the answer to this call. An answer to another call must not end this intent.
func decodeAnswer(text []byte, id jsonrpc.ID) (*jsonrpc.Response, bool) {
	message, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil, false
	}
	response, ok := message.(*jsonrpc.Response)
	return response, ok && response.ID == id
}

// resume asks for the rest of a stream that broke off. It always returns a stream. If there is no rest, the stream
// ends the call.
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

// lastWords returns a stream that ends the library's wait for an answer.
func lastWords(request *http.Request, c *call) *http.Response {
	c.abandon("reset")
	text, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: c.id, Error: &jsonrpc.Error{Code: codeInternalError, Message: errUnanswered.Error()}})
	if err != nil {
		text = nil // then the library gives up by itself
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body:   io.NopCloser(bytes.NewReader(append(append([]byte("data: "), text...), "\n\n"...))),
	}
}

// control sends requests that are not calls: the handshake, lists, notifications.
func (w *wire) control(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	stop := context.AfterFunc(w.life, cancel)
	release := func() { stop(); cancel() }
	response, failed := w.transport.Send(request.WithContext(ctx))
	if failed != nil {
		release()
		return nil, &wireError{failed.Class}
	}
	last, _ := ctx.Value(refusalKey{}).(*atomic.Pointer[refusal])
	if response.StatusCode > 299 && last != nil && request.Method == http.MethodPost { // a refused DELETE at the end of a session does not count
		last.Store(&refusal{response.StatusCode, evidence.RetryAfter(response.Header, time.Now())})
	}
	response.Body = &controlBody{limitedReader{response.Body, maxControlBytes}, response.Body, release}
	return response, nil
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

// limitedReader fails if there is too much to read.
type limitedReader struct {
	from io.Reader
	left int64
}

func (r *limitedReader) Read(into []byte) (int, error) {
	n, err := r.from.Read(into)
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

// guardedStream passes on the server-sent events of one call, each as a whole and only if the event is sound. After
// an unsound event the call is over and the stream breaks off. The library takes that as the end of this call alone.
type guardedStream struct {
	ctx   context.Context
	from  *bufio.Reader
	body  io.Closer
	call  *call
	limit int64
	ready []byte // the rest of a sound event that is not yet passed on
	err   error
}

func guard(ctx context.Context, body io.ReadCloser, c *call, limit int64) io.ReadCloser {
	return &guardedStream{ctx: ctx, from: bufio.NewReader(body), body: body, call: c, limit: limit}
}

func (s *guardedStream) Close() error { return s.body.Close() }

func (s *guardedStream) Read(into []byte) (int, error) {
	for len(s.ready) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.ready, s.err = s.next()
	}
	n := copy(into, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// next returns one event with the empty line that ends it. A stream's last lines without an empty line are not an
// event.
func (s *guardedStream) next() ([]byte, error) {
	var event, data []byte
	for isMessage := true; ; {
		line, err := s.line(s.limit - int64(len(event)))
		switch {
		case errors.Is(err, errTooLarge):
			return nil, s.unsound("body_too_large")
		case err != nil:
			s.call.interrupt(streamClass(s.ctx, err))
			return nil, err
		}
		event = append(event, line...)
		field, value, found := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		switch {
		case !found && len(field) == 0:
			if isMessage && !s.isSound(data) {
				return nil, s.unsound("protocol")
			}
			return event, nil
		case !found:
			return nil, s.unsound("protocol")
		case string(field) == "data":
			data = append(append(data, bytes.TrimSpace(value)...), '\n')
		case string(field) == "event":
			isMessage = string(bytes.TrimSpace(value)) == "message"
		}
	}
}

// line reads in pieces, so that it never keeps a line without an end.
func (s *guardedStream) line(limit int64) ([]byte, error) {
	var line []byte
	for {
		piece, err := s.from.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case int64(len(line)) > limit:
			return nil, errTooLarge
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// isSound checks a message before the library sees it. The answer to another call is unsound, since it would end
// that call.
func (s *guardedStream) isSound(data []byte) bool {
	if len(bytes.TrimSpace(data)) == 0 {
		return true
	}
	message, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return false
	}
	response, isResponse := message.(*jsonrpc.Response)
	if !isResponse {
		return true
	}
	if response.ID != s.call.id {
		return false
	}
	s.call.answered(response)
	return true
}

// unsound ends the call. To the library it looks like a broken connection.
func (s *guardedStream) unsound(class string) error {
	s.call.fail(true, class)
	return io.ErrUnexpectedEOF
}

func streamClass(ctx context.Context, err error) string {
	if errors.Is(err, io.EOF) {
		return "reset"
	}
	return bodyClass(ctx, err)
}
