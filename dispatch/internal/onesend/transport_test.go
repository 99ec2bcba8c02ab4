package onesend_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/onesend"
)

const okay = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// over returns a transport whose connections come from dial.
func over(t *testing.T, dial func(context.Context, string, string) (net.Conn, error)) *onesend.Transport {
	t.Helper()
	transport := onesend.New(dispatch.NewNetwork(dial, nil))
	t.Cleanup(transport.Close)
	return transport
}

func post(t *testing.T, ctx context.Context, to, body string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.GetBody = nil
	return request
}

// exchange sends a request and reads the answer to its end.
func exchange(t *testing.T, transport *onesend.Transport, to, body string) (answer string, failed *onesend.Failure) {
	t.Helper()
	response, failed := transport.Send(post(t, t.Context(), to, body))
	if failed != nil {
		return "", failed
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text), nil
}

// piped returns a transport whose provider is at the other end of a pipe, so that the test's clock applies to it.
func piped(t *testing.T, serve func(net.Conn)) (transport *onesend.Transport, ended chan struct{}) {
	t.Helper()
	ended = make(chan struct{}, 1000)
	return over(t, func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			serve(theirs)
			ended <- struct{}{}
		}()
		return ours, nil
	}), ended
}

func serveAll(conn net.Conn) {
	for reader := bufio.NewReader(conn); dispatchtest.ReadRequest(reader) == nil; {
		_, _ = io.WriteString(conn, okay)
	}
}

// saying returns a server that gives one request the answer, and waits until the client leaves.
func saying(answer string) func(net.Conn) {
	return func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		_ = dispatchtest.ReadRequest(reader)
		_, _ = io.WriteString(conn, answer)
		_, _ = io.Copy(io.Discard, reader)
	}
}

const nowhere = "http://provider.invalid/"

func TestAnIdleConnectionClosesAfterHalfAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, serveAll)
		for range 3 {
			if _, failed := exchange(t, transport, nowhere, "x"); failed != nil {
				t.Fatalf("%+v", failed)
			}
			time.Sleep(20 * time.Second)
		}
		used := time.Now().Add(-20 * time.Second)
		<-ended
		if idle := time.Since(used); idle < 30*time.Second || idle > time.Minute {
			t.Errorf("closed after %s", idle)
		}
		if len(ended) > 0 {
			t.Error("more than one connection was opened")
		}
		if _, failed := exchange(t, transport, nowhere, "x"); failed != nil {
			t.Fatalf("afterwards: %+v", failed)
		}
		<-ended // the new one grows old as well
	})
}

func TestNoMoreThanSomeConnectionsStayIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const kept, opened = 256, 300
		transport, ended := piped(t, serveAll)
		var bodies []io.ReadCloser
		for range opened {
			response, failed := transport.Send(post(t, t.Context(), nowhere, "x"))
			if failed != nil {
				t.Fatalf("%+v", failed)
			}
			bodies = append(bodies, response.Body)
		}
		for _, body := range bodies {
			_, _ = io.Copy(io.Discard, body)
			body.Close()
		}
		synctest.Wait()
		if got := len(ended); got != opened-kept {
			t.Errorf("%d connections were closed at once, want %d", got, opened-kept)
		}
		transport.Close()
		synctest.Wait()
		if got := len(ended); got != opened {
			t.Errorf("%d connections were closed in the end, want %d", got, opened)
		}
	})
}

func TestAnExchangeThatOutlivesTheTransportClosesItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, serveAll)
		response, failed := transport.Send(post(t, t.Context(), nowhere, "x"))
		if failed != nil {
			t.Fatalf("%+v", failed)
		}
		transport.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		synctest.Wait()
		if len(ended) != 1 {
			t.Error("its connection is still open")
		}
	})
}

func TestTheEndOfTheContextEndsAnExchange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		serve func(net.Conn)
		sent  bool
	}{
		"before anything was taken": {func(conn net.Conn) { time.Sleep(time.Hour) }, false},
		"within the request":        {func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)); time.Sleep(time.Hour) }, true},
		"before the answer":         {func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, true},
		"within the header":         {saying("HTTP/1.1 200 OK\r\nX:"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				transport, ended := piped(t, test.serve)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, failed := transport.Send(post(t, ctx, nowhere, "x"))
				if failed == nil || *failed != (onesend.Failure{Sent: test.sent, Class: "timeout"}) {
					t.Errorf("%+v, want a timeout, sent: %t", failed, test.sent)
				}
				<-ended
			})
		})
	}
}

func TestWhatAConnectionSentBeforeIsNotThisRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, func(conn net.Conn) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, okay)
			time.Sleep(10 * time.Second) // it reads nothing more
		})
		if _, failed := exchange(t, transport, nowhere, "x"); failed != nil {
			t.Fatalf("%+v", failed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, failed := transport.Send(post(t, ctx, nowhere, "x"))
		if failed == nil || *failed != (onesend.Failure{Class: "timeout"}) {
			t.Errorf("%+v, want a timeout, not sent", failed)
		}
		<-ended
	})
}

func TestTheEndOfTheContextEndsTheReadingOfABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		response, failed := transport.Send(post(t, ctx, nowhere, "x"))
		if failed != nil {
			t.Fatalf("%+v", failed)
		}
		if _, err := io.ReadAll(response.Body); err == nil {
			t.Error("half a body was read to its end")
		}
		response.Body.Close()
		<-ended
	})
}

func TestASwitchOfProtocolsIsReadNoFurther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, saying("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"))
		response, failed := transport.Send(post(t, t.Context(), nowhere, "x"))
		if failed != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v %+v", response, failed)
		}
		if text, err := io.ReadAll(response.Body); err != nil || len(text) > 0 {
			t.Errorf("read %q, %v", text, err)
		}
		response.Body.Close()
		<-ended
	})
}

// The rest of an earlier exchange, such as the body of a 204, may look like the next answer.
func TestAnAnswerThatCameBeforeItsRequestIsNoAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		early, seen := make(chan struct{}), make(chan struct{})
		transport, ended := piped(t, func(conn net.Conn) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, okay)
			<-early
			_, _ = io.WriteString(conn, okay)
			_, _ = io.Copy(io.Discard, conn)
		})
		if answer, failed := exchange(t, transport, nowhere, "x"); answer != "ok" {
			t.Fatalf("%q %+v", answer, failed)
		}
		synctest.Wait() // until the connection is idle
		var begins sync.Once
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			WroteHeaderField:     func(string, []string) { begins.Do(func() { close(early); <-seen }) }, // nothing has been flushed
			GotFirstResponseByte: func() { close(seen) },
		})
		response, failed := transport.Send(post(t, ctx, nowhere, "x"))
		if failed == nil || *failed != (onesend.Failure{Sent: true, Class: "protocol"}) {
			t.Errorf("%+v %+v, want a protocol failure", response, failed)
		}
		if response != nil {
			response.Body.Close()
			transport.Close()
		}
		<-ended // such a connection is not used again
	})
}

// shortConn takes that many of the written bytes and then fails, like a connection that the peer has reset.
type shortConn struct {
	net.Conn
	takes int
}

func (c *shortConn) Write(bytes []byte) (int, error) {
	n, _ := c.Conn.Write(bytes[:min(c.takes, len(bytes))])
	c.takes -= n
	if n < len(bytes) {
		return n, syscall.EPIPE
	}
	return n, nil
}

// The bytes of a request that the kernel took may have reached the provider.
func TestARequestThatWasTakenInPartIsAmbiguous(t *testing.T) {
	t.Parallel()
	for taken, want := range map[int]onesend.Failure{
		0:   {Class: "dial"},
		1:   {Sent: true, Class: "reset"},
		150: {Sent: true, Class: "reset"},
	} {
		to := "http://" + dispatchtest.ServeConns(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
		dials := 0
		transport := over(t, func(ctx context.Context, network, address string) (net.Conn, error) {
			dials++
			conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
			return &shortConn{conn, taken}, err
		})
		for attempt := range 2 { // the second on a connection of its own
			answer, failed := exchange(t, transport, to, strings.Repeat("x", 200))
			if failed == nil || *failed != want || dials != attempt+1 {
				t.Errorf("%d bytes taken, %d connections for %d requests: %q %+v, want %+v", taken, dials, attempt+1, answer, failed, want)
			}
		}
	}
}

// A client that reads only after it has written all would wait forever for such
// a provider.
func TestALongRequestToAProviderThatDoesNotReadIsAnswered(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	to := "http://" + dispatchtest.ServeConns(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		<-leave
	})
	defer close(leave)
	long := strings.Repeat("x", 16<<20)
	for name, test := range map[string]struct {
		query, header, body string
		unknown             bool // the body's length is not known beforehand
	}{
		"short":                    {body: long[:3<<10]},
		"a little longer":          {body: long[:5<<10]},
		"with a long body":         {body: long},
		"with a body without end":  {body: long, unknown: true},
		"with a long query":        {query: "?" + long},
		"with a long header value": {header: long},
	} {
		t.Run(name, func(t *testing.T) {
			request := post(t, t.Context(), to+"/"+test.query, test.body)
			if test.unknown {
				request.ContentLength = -1
			}
			request.Header.Set("X-Long", test.header)
			response, failed := over(t, nil).Send(request)
			if failed != nil {
				t.Fatalf("%+v", failed)
			}
			if answer, err := io.ReadAll(response.Body); err != nil || string(answer) != "no" {
				t.Errorf("%q %v", answer, err)
			}
			response.Body.Close()
		})
	}
}

func TestAHeaderThatCannotBeSentAsItIsIsNotSent(t *testing.T) {
	t.Parallel()
	to := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	for name, value := range map[string]string{"X-Key": "a\r\nb", "X-Nul": "a\x00b", "X Space": "a"} {
		request := post(t, t.Context(), to, "x")
		request.Header[name] = []string{"good", value}
		if _, failed := over(t, nil).Send(request); failed == nil || failed.Sent {
			t.Errorf("%s: %+v", name, failed)
		}
	}
}

func TestABodyThatBrokeOffGoesOnFailing(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"cut short":    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
		"no gzip":      "HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + strings.Repeat("gzip", 1024) + zipped("ok"),
		"broken chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nx\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			to := "http://" + dispatchtest.ServeConns(t, func(conn net.Conn) {
				if dispatchtest.ReadRequest(bufio.NewReader(conn)) == nil {
					requests.Add(1)
					_, _ = io.WriteString(conn, answer)
				}
			})
			response, failed := over(t, nil).Send(post(t, t.Context(), to, "x"))
			if failed != nil {
				t.Fatalf("%+v", failed)
			}
			defer response.Body.Close()
			for range 3 {
				if _, err := io.Copy(io.Discard, response.Body); err == nil {
					t.Error("half a body was read to its end")
				}
			}
		})
	}
}

func zipped(text string) string {
	var packed strings.Builder
	writer := gzip.NewWriter(&packed)
	_, _ = io.WriteString(writer, text)
	_ = writer.Close()
	return packed.String()
}

// failingConn fails to read, once something was written, like a network that
// has lost its route.
type failingConn struct {
	net.Conn
	written chan struct{}
}

func (c failingConn) Write(bytes []byte) (int, error) {
	defer close(c.written) // the request is short: one write
	return c.Conn.Write(bytes)
}

func (c failingConn) Read([]byte) (int, error) {
	<-c.written
	return 0, syscall.EHOSTUNREACH
}

func TestALostNetworkAfterTheRequestIsReset(t *testing.T) {
	t.Parallel()
	to := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	transport := over(t, func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
		return failingConn{conn, make(chan struct{})}, err
	})
	_, failed := exchange(t, transport, to, "x")
	if failed == nil || *failed != (onesend.Failure{Sent: true, Class: "reset"}) {
		t.Errorf("%+v, want reset", failed)
	}
}

func TestAStatusBelowAllOthersIsAnAnswer(t *testing.T) {
	t.Parallel()
	to := "http://" + dispatchtest.ServeConns(t, saying("HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n"))
	response, failed := over(t, nil).Send(post(t, t.Context(), to, "x"))
	if failed != nil || response.StatusCode != 99 {
		t.Fatalf("%+v %+v", response, failed)
	}
	response.Body.Close()
}

func TestInterimAnswersWithoutEndAreNoAnswer(t *testing.T) {
	t.Parallel()
	to := "http://" + dispatchtest.ServeConns(t, func(conn net.Conn) {
		_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
		for err := error(nil); err == nil; {
			_, err = io.WriteString(conn, "HTTP/1.1 102 Processing\r\n\r\n")
		}
	})
	_, failed := exchange(t, over(t, nil), to, "x")
	if failed == nil || *failed != (onesend.Failure{Sent: true, Class: "protocol"}) {
		t.Errorf("%+v, want a protocol failure", failed)
	}
}
