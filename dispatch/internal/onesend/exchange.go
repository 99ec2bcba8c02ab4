package onesend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// exchange has a connection from the request on until the response is read. The
// end of its context closes the connection, which wakes whoever reads or writes.
type exchange struct {
	conn  *connection
	idle  *idleConnections
	leave func() bool // the context; false if it has ended
	once  sync.Once
}

func (p *plain) begin(ctx context.Context, conn *connection) *exchange {
	return &exchange{conn: conn, idle: &p.idle, leave: context.AfterFunc(ctx, conn.abandon)}
}

// end gives the connection back or closes it. Ending again does nothing: by
// then, another exchange may have the connection.
func (e *exchange) end(reusable bool) {
	e.once.Do(func() {
		if undisturbed := e.leave(); undisturbed && reusable && e.conn.isDrained() {
			e.idle.put(e.conn)
			return
		}
		e.conn.abandon()
	})
}

// answerBody ends the exchange with the reading of its response. What is left
// unread is given up together with the connection.
type answerBody struct {
	io.ReadCloser
	exchange *exchange
	keeps    bool  // the provider keeps the connection open
	err      error // the first, and from then on the only one
	ended    atomic.Bool
}

func newAnswerBody(response *http.Response, exchange *exchange) *answerBody {
	b := &answerBody{ReadCloser: response.Body, exchange: exchange, keeps: !response.Close}
	b.ended.Store(response.Body == http.NoBody)
	return b
}

// Read goes on failing: a body that broke off says only once that it did.
func (b *answerBody) Read(octets []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	n, b.err = b.ReadCloser.Read(octets)
	if errors.Is(b.err, io.EOF) {
		b.ended.Store(true)
	}
	return n, b.err
}

func (b *answerBody) Close() error {
	b.exchange.end(b.keeps && b.ended.Load())
	return nil
}
