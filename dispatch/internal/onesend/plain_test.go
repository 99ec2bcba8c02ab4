package onesend_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
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
	"github.com/agentoutbox/drainer/dispatch/internal/peek"
)

const okay = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// over makes a transport whose connections are what dial makes of them.
func over(t *testing.T, dial func(context.Context, string, string) (net.Conn, error)) *onesend.Transport {
	t.Helper()
	transport := onesend.New(dispatch.NewNetwork(dial, nil))
	t.Cleanup(transport.CloseIdleConnections)
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

// exchange sends, and reads to the end.
func exchange(t *testing.T, transport *onesend.Transport, to, body string) (answer string, failed *onesend.Failure) {
	t.Helper()
	response, failed := transport.Send(post(t, t.Context(), to, body))
	if failed != nil {
		return "", failed
	}
	defer response.Body.Close()
	octets, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return string(octets), nil
}

// A connection may serve again where nothing on it can be mistaken for the
// next request's answer. Each case says what the provider does with its first
// connection, and over which one the second request must come.
func TestAConnectionServesAgainIfItsExchangeLeftNothing(t *testing.T) {
	t.Parallel()
	speak := func(text string) func(net.Conn) {
		return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
	}
	for name, test := range map[string]struct {
		first string
		read  int64          // octets of its body
		then  func(net.Conn) // what the provider does afterwards
		want  int
	}{
		"an answer that was read":            {first: okay, read: 3, want: 0},
		"an answer in chunks":                {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", read: 3, want: 0},
		"an answer without a body, unread":   {first: "HTTP/1.1 204 No Content\r\n\r\n", want: 0},
		"an answer after an interim one":     {first: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + okay, read: 3, want: 0},
		"an answer that was not read":        {first: okay, want: 1},
		"an answer read in part":             {first: okay, read: 1, want: 1},
		"an answer that closes":              {first: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", read: 3, want: 1},
		"an answer of HTTP/1.0":              {first: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", read: 3, want: 1},
		"an answer that changes protocols":   {first: "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", read: 3, want: 1},
		"two answers at once":                {first: okay + okay, read: 3, want: 1},
		"an answer, and later one more":      {first: okay, read: 3, then: speak(okay), want: 1},
		"an answer, and later a farewell":    {first: okay, read: 3, then: speak("HTTP/1.1 408 Request Timeout\r\n\r\n"), want: 1},
		"an answer, and later the end of it": {first: okay, read: 3, then: func(conn net.Conn) { _ = conn.Close() }, want: 1},
		"an answer, and later half the end":  {first: okay, read: 3, then: func(conn net.Conn) { _ = conn.(*net.TCPConn).CloseWrite() }, want: 1},
		"an answer, and later a reset of it": {first: okay, read: 3, then: reset, want: 1},
		"an answer whose end never comes":    {first: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", read: 2, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			theirs := make(chan net.Conn, 2)
			to := dispatchtest.ServeConns(t, func(number int, conn net.Conn) {
				theirs <- conn
				reader := bufio.NewReader(conn)
				for i := 0; dispatchtest.ReadRequest(reader) == nil; i++ {
					if number == 0 && i == 0 {
						_, _ = io.WriteString(conn, test.first)
						continue
					}
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nconnection %d", number)
				}
			})
			var ours net.Conn
			transport := over(t, func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
				ours = conn
				return conn, err
			})
			response, failed := transport.Send(post(t, t.Context(), to, "first"))
			if failed != nil {
				t.Fatalf("first: %+v", failed)
			}
			_, _ = io.CopyN(io.Discard, response.Body, test.read)
			response.Body.Close()
			response.Body.Close() // again does nothing
			if test.then != nil {
				test.then(<-theirs)
				for peek.At(ours) == peek.Quiet {
					runtime.Gosched() // it is on its way
				}
			}
			want := fmt.Sprintf("connection %d", test.want)
			if answer, failed := exchange(t, transport, to, "second"); failed != nil || answer != want {
				t.Errorf("second: %q %+v, want %q", answer, failed, want)
			}
		})
	}
}

func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func TestManyExchangesAtOnceGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	const callers, calls = 16, 200
	var number atomic.Int64
	to := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if number.Add(1)%7 == 0 {
			w.Header().Set("Connection", "close")
		}
		_, _ = io.Copy(w, r.Body)
	}))
	transport := over(t, nil)
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for call := range calls {
				body := fmt.Sprintf("%d of %d", call, caller)
				if answer, failed := exchange(t, transport, to, body); failed != nil || answer != body {
					t.Errorf("%q %+v, want %q", answer, failed, body)
					return
				}
			}
		})
	}
	all.Wait()
}

// piped is a transport whose provider is at the other end of a pipe, so that
// time in it can be made to pass.
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
		return quiet(t, ours), nil
	}), ended
}

// quietPipe seems to be a socket of which the kernel holds nothing.
type quietPipe struct {
	net.Conn
	socket *net.UDPConn
}

func (p quietPipe) SyscallConn() (syscall.RawConn, error) { return p.socket.SyscallConn() }

func quiet(t *testing.T, pipe net.Conn) net.Conn {
	t.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return quietPipe{pipe, socket}
}

func serveAll(conn net.Conn) {
	for reader := bufio.NewReader(conn); dispatchtest.ReadRequest(reader) == nil; {
		_, _ = io.WriteString(conn, okay)
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
		var bodies []io.Closer
		for range opened {
			response, failed := transport.Send(post(t, t.Context(), nowhere, "x"))
			if failed != nil {
				t.Fatalf("%+v", failed)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			bodies = append(bodies, response.Body)
		}
		for _, body := range bodies {
			body.Close()
		}
		synctest.Wait()
		if got := len(ended); got != opened-kept {
			t.Errorf("%d connections were closed at once, want %d", got, opened-kept)
		}
		transport.CloseIdleConnections()
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
		transport.CloseIdleConnections()
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
		"within the header": {func(conn net.Conn) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX:")
			_, _ = io.Copy(io.Discard, conn)
		}, true},
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
			time.Sleep(10 * time.Second) // and reads nothing more
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

func TestTheConnectionThatServedLastServesNext(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		transport, _ := piped(t, func(conn net.Conn) {
			number := conns.Add(1)
			for reader := bufio.NewReader(conn); dispatchtest.ReadRequest(reader) == nil; {
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", number)
			}
		})
		var answers []*http.Response
		for range 3 {
			response, failed := transport.Send(post(t, t.Context(), nowhere, "x"))
			if failed != nil {
				t.Fatalf("%+v", failed)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			answers = append(answers, response)
		}
		for _, last := range []int{0, 2, 1} {
			answers[last].Body.Close()
		}
		for range 2 {
			if answer, failed := exchange(t, transport, nowhere, "x"); failed != nil || answer != "2" {
				t.Errorf("connection %q served %+v, want 2", answer, failed)
			}
		}
		transport.CloseIdleConnections()
	})
}

func TestAConnectionServesItsOwnAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := over(t, func(_ context.Context, _, address string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				for reader := bufio.NewReader(theirs); dispatchtest.ReadRequest(reader) == nil; {
					fmt.Fprintf(theirs, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(address), address)
				}
			}()
			return quiet(t, ours), nil
		})
		for range 2 {
			for to, want := range map[string]string{
				"http://one.invalid/":      "one.invalid:80",
				"http://one.invalid:8080/": "one.invalid:8080",
				"http://zwölf.invalid/":    "xn--zwlf-6qa.invalid:80",
			} {
				if answer, failed := exchange(t, transport, to, "x"); failed != nil || answer != want {
					t.Errorf("%s: %q %+v", to, answer, failed)
				}
			}
		}
		transport.CloseIdleConnections()
	})
}

func TestTheEndOfTheContextEndsTheReadingOfABody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport, ended := piped(t, func(conn net.Conn) {
			_ = dispatchtest.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
			_, _ = io.Copy(io.Discard, conn)
		})
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

// shortConn takes so many octets of what is written and then fails, as a
// connection that the peer has reset.
type shortConn struct {
	net.Conn
	takes int
}

func (c *shortConn) Write(octets []byte) (int, error) {
	n, _ := c.Conn.Write(octets[:min(c.takes, len(octets))])
	c.takes -= n
	if n < len(octets) {
		return n, syscall.EPIPE
	}
	return n, nil
}

// A provider may refuse a request, and leave, before it has read all of it.
func TestARequestThatWasTakenInPartMayHaveItsAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		takes   int
		answer  string
		want    string
		failure *onesend.Failure
	}{
		"nothing was taken":              {0, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "", &onesend.Failure{Class: "dial"}},
		"one octet, and an answer":       {1, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno", "no", nil},
		"one octet, and no answer":       {1, "", "", &onesend.Failure{Sent: true, Class: "reset"}},
		"all but one octet, and answers": {150, okay, "ok", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
				_, _ = io.WriteString(conn, test.answer)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
			})
			dials := 0
			transport := over(t, func(ctx context.Context, network, address string) (net.Conn, error) {
				dials++
				conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
				return &shortConn{conn, test.takes}, err
			})
			for attempt := range 2 { // whose connection serves nobody else
				answer, failed := exchange(t, transport, to, strings.Repeat("x", 200))
				if answer != test.want || (failed == nil) != (test.failure == nil) || failed != nil && *failed != *test.failure {
					t.Errorf("%q %+v, want %q %+v", answer, failed, test.want, test.failure)
				}
				if dials != attempt+1 {
					t.Errorf("%d connections for %d requests", dials, attempt+1)
				}
			}
		})
	}
}

// Whoever writes all before he reads would wait for ever for one who answers
// before he reads.
func TestALongRequestToAProviderThatDoesNotReadIsAnswered(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		<-leave
	})
	defer close(leave)
	long := strings.Repeat("x", 16<<20)
	for name, test := range map[string]struct {
		query, header, body string
		unknown             bool // the body's length, beforehand
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

func TestAConnectionThatCannotBeLookedAtServesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{}, 2)
		transport := over(t, func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				serveAll(theirs)
				ended <- struct{}{}
			}()
			return ours, nil
		})
		for requests := 1; requests <= 2; requests++ {
			if _, failed := exchange(t, transport, nowhere, "x"); failed != nil {
				t.Fatalf("%+v", failed)
			}
			synctest.Wait()
			if len(ended) != requests {
				t.Errorf("%d connections ended after %d requests", len(ended), requests)
			}
		}
	})
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
			to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
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
	var octets strings.Builder
	writer := gzip.NewWriter(&octets)
	_, _ = io.WriteString(writer, text)
	_ = writer.Close()
	return octets.String()
}

// failingConn fails to read as a network does that lost its way.
type failingConn struct{ net.Conn }

func (failingConn) Read([]byte) (int, error) { return 0, syscall.EHOSTUNREACH }

func TestWhatANetworkLosesIsReset(t *testing.T) {
	t.Parallel()
	to := dispatchtest.Serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	transport := over(t, func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dispatch.PlainDialer().DialContext(ctx, network, address)
		return failingConn{conn}, err
	})
	_, failed := exchange(t, transport, to, "x")
	if failed == nil || *failed != (onesend.Failure{Sent: true, Class: "reset"}) {
		t.Errorf("%+v, want reset", failed)
	}
}

func TestAStatusBelowAllOthersIsAnAnswer(t *testing.T) {
	t.Parallel()
	to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
		reader := bufio.NewReader(conn)
		_ = dispatchtest.ReadRequest(reader)
		_, _ = io.WriteString(conn, "HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n")
		_, _ = io.Copy(io.Discard, reader)
	})
	response, failed := over(t, nil).Send(post(t, t.Context(), to, "x"))
	if failed != nil || response.StatusCode != 99 {
		t.Fatalf("%+v %+v", response, failed)
	}
	response.Body.Close()
}

func TestInterimAnswersWithoutEndAreNoAnswer(t *testing.T) {
	t.Parallel()
	to := dispatchtest.ServeConns(t, func(_ int, conn net.Conn) {
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

func TestAnswersAreZippedUnlessTheRequestSaysOtherwise(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	to := dispatchtest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("Accept-Encoding") }))
	for name, test := range map[string]struct {
		change func(*http.Request)
		want   string
	}{
		"as usual":       {func(*http.Request) {}, "gzip"},
		"other encoding": {func(r *http.Request) { r.Header.Set("Accept-Encoding", "br") }, "br"},
		"a range":        {func(r *http.Request) { r.Header.Set("Range", "bytes=0-1") }, ""},
		"a head":         {func(r *http.Request) { r.Method = http.MethodHead }, ""},
	} {
		for _, way := range []string{"plain", "standard"} {
			request := post(t, t.Context(), to, "x")
			if way == "standard" {
				request.ContentLength = -1
			}
			test.change(request)
			response, failed := over(t, nil).Send(request)
			if failed != nil {
				t.Fatalf("%s, %s: %+v", name, way, failed)
			}
			response.Body.Close()
			if got := <-asked; got != test.want {
				t.Errorf("%s, %s: asked for %q, want %q", name, way, got, test.want)
			}
		}
	}
}
