package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// guardedStream hands on the server-sent events of one call, each as a whole
// and only if it is sound. Where one is not, the call is over and the stream
// breaks off, which the library takes as the end of this call alone.
type guardedStream struct {
	ctx   context.Context
	from  *bufio.Reader
	body  io.Closer
	call  *call
	limit int64
	ready []byte // of a sound event, not yet handed on
	err   error
}

func guard(ctx context.Context, body io.ReadCloser, c *call, limit int64) io.ReadCloser {
	return &guardedStream{ctx: ctx, from: bufio.NewReader(body), body: body, call: c, limit: limit}
}

func (s *guardedStream) Close() error { return s.body.Close() }

func (s *guardedStream) Read(octets []byte) (int, error) {
	for len(s.ready) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.ready, s.err = s.next()
	}
	n := copy(octets, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// next is one event with the empty line that ends it. What a stream ends on
// without that line is no event.
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

// line is read in pieces, so that a line without end is not kept.
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

// isSound looks at a message before the library does. An answer to another
// call than this stream's would end that one.
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

// unsound ends the call. The library sees a connection that broke.
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
