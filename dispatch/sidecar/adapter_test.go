package sidecar_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/child"
)

func TestMain(m *testing.M) {
	if os.Getenv("STAGE") != "" {
		bePlayer()
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func request(payload string) dispatch.Request {
	return dispatchtest.Intent("desk/open", "step-1", payload)
}

func spec(url string, settings string) dispatch.Spec {
	return dispatch.Spec{
		Provider: "desk",
		Timeout:  10 * time.Second,
		Settings: dispatchtest.Block("url: " + url + "\n" + settings),
		Tools: map[string]dispatch.ToolSpec{
			"open":  {Class: dispatch.KeyIdempotent},
			"close": {Class: dispatch.NonIdempotent},
		},
	}
}

func newAdapter(t *testing.T, spec dispatch.Spec) *sidecar.Adapter {
	t.Helper()
	return dispatchtest.Build(t, sidecar.New, spec)
}

const goodHello = `{"protocol":[1],"name":"desk"}`

// desk is a sidecar that gives the answers of a test.
type desk struct {
	hello    func(w http.ResponseWriter, r *http.Request)
	dispatch func(w http.ResponseWriter, id string, body []byte)
	greeted  atomic.Int64
	arrived  atomic.Int64
}

func newDesk() *desk {
	return &desk{
		hello: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodHello) },
		dispatch: func(w http.ResponseWriter, id string, body []byte) {
			fmt.Fprintf(w, `{"id":%q,"outcome":"completed","response":%s}`, id, body)
		},
	}
}

func (d *desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/hello":
		d.greeted.Add(1)
		d.hello(w, r)
	case "POST /v1/dispatch":
		d.arrived.Add(1)
		var message struct{ ID string }
		if json.NewDecoder(bytes.NewReader(body)).Decode(&message) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		d.dispatch(w, message.ID, body)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// loopback serves on a port and returns its URL.
func (d *desk) loopback(t *testing.T) string {
	t.Helper()
	return dispatchtest.Serve(t, d)
}

// socket serves on a Unix socket and returns its URL.
func (d *desk) socket(t *testing.T) string {
	t.Helper()
	return "unix://" + d.socketIn(t, shortFolder(t, 0o700), "s")
}

// socketIn serves the desk in a folder, under a name.
func (d *desk) socketIn(t *testing.T, folder, name string) string {
	t.Helper()
	path := filepath.Join(folder, name)
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: d}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return path
}

func shortFolder(t *testing.T, mode os.FileMode) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "sidecar") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, mode); err != nil { //nolint:gosec // a folder that others may write to is the case
		t.Fatal(err)
	}
	return folder
}

func TestAnAdapterSaysWhereItConnectsTo(t *testing.T) {
	t.Parallel()
	dispatchtest.ConnectsTo(t, sidecar.Kind(), map[string][]dispatch.Destination{
		"url: unix:///run/tickets.sock": {{Network: "unix", Address: "/run/tickets.sock"}},
		"url: http://127.0.0.1:8090":    {{Network: "tcp", Address: "127.0.0.1:8090"}},
	})
}

func TestTheSidecarAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NonIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			cannot := map[dispatchtest.Situation]string{}
			if class == dispatch.NonIdempotent {
				cannot[dispatchtest.Busy] = "an operation that must not be repeated is not asked to repeat"
			}
			dispatchtest.Conform(t, dispatchtest.Subject{Kind: sidecar.Kind(), Class: class, Start: startPlayer, Cannot: cannot})
		})
	}
}

const token = "token-9d41c07e"

func startPlayer(t *testing.T) dispatchtest.Counterpart {
	stage := protocoltest.NewStage(t)
	gate := dispatchtest.OpenGate(t, startProcess(t, stage), nil)
	return dispatchtest.Counterpart{
		Settings: "{url: 'http://" + gate.Address + "', token: " + token + "}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{token},
		Received: stage.Received,
		Enter: func(situation dispatchtest.Situation) {
			if situation == dispatchtest.Unreachable {
				gate.Shut()
				return
			}
			gate.Open()
			stage.Enter(situation)
		},
	}
}

// startProcess starts a sidecar in a process of its own, which follows the directions of the stage. It waits until
// the sidecar listens.
func startProcess(t *testing.T, stage *protocoltest.Stage) (address string) {
	t.Helper()
	address = dispatchtest.Address(t)
	command := osexec.Command(os.Args[0])
	command.Env = []string{"STAGE=" + stage.Path(), "ADDRESS=" + address}
	command.Stderr = os.Stderr
	process, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Signal(syscall.SIGKILL)
		<-process.Ended()
	})
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address
		}
		select {
		case <-process.Ended():
			t.Fatalf("the sidecar ended: %v", process.Failure())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// bePlayer is the main function of that process.
func bePlayer() {
	stage := protocoltest.Play(os.Getenv("STAGE"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodHello) })
	mux.HandleFunc("POST /v1/dispatch", func(w http.ResponseWriter, r *http.Request) {
		line, err := io.ReadAll(r.Body)
		if err != nil {
			return // it did not arrive whole
		}
		switch direction := stage.Ask(line); {
		case direction.Die:
			panic(http.ErrAbortHandler)
		case direction.Say == "":
			<-r.Context().Done()
		default:
			_, _ = io.WriteString(w, direction.Say)
		}
	})
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
	_ = http.ListenAndServe(os.Getenv("ADDRESS"), guarded)
}

func TestTheSidecarSeesTheWholeRequest(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	for name, url := range map[string]string{"socket": desk.socket(t), "loopback": desk.loopback(t)} {
		asked := request(`{"b": 1.0, "a":9007199254740993,"a":"<&>"}`)
		asked.Attempt = 3
		asked.Headers = map[string]string{"traceparent": "00-ab", "authorization": "not ours to forward"}
		got := newAdapter(t, spec(url, "")).Dispatch(t.Context(), asked)
		dispatchtest.Expect(t, got, dispatch.Completed, "")
		for _, part := range []string{
			`"payload":{"b":1.0,"a":9007199254740993,"a":"<&>"}`, `"operation":"open"`, `"attempt":3`, `"deadline_ms":`,
			`"idempotency_key":"` + request("").IdempotencyKey + `"`, `"headers":{"traceparent":"00-ab"}`,
			`"tuple":{"agent_run_id":"run-001","step_id":"step-1","tool_name":"desk/open","business_scope":"invoice_442"}`,
		} {
			if !strings.Contains(string(got.Response), part) {
				t.Errorf("%s: %s is missing from %s", name, part, got.Response)
			}
		}
	}
}

func TestTheTokenIsShownWithEveryRequest(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	guard := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0k3n" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		desk.ServeHTTP(w, r)
	})
	url := dispatchtest.Serve(t, guard)
	dispatchtest.Expect(t, newAdapter(t, spec(url, "token: t0k3n")).Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
	dispatchtest.Expect(t, newAdapter(t, spec(url, "token: guessed")).Dispatch(t.Context(), request(`{}`)), dispatch.CredentialsRefused, "http_401")
	dispatchtest.Expect(t, newAdapter(t, spec(url, "")).Dispatch(t.Context(), request(`{}`)), dispatch.CredentialsRefused, "http_401")
}

func TestManyAtOnceAskForOneHello(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	adapter := newAdapter(t, spec(desk.socket(t), ""))
	var all sync.WaitGroup
	for number := range 100 {
		all.Go(func() {
			got := adapter.Dispatch(t.Context(), request(fmt.Sprintf(`{"number":%d}`, number)))
			if !strings.Contains(string(got.Response), fmt.Sprintf(`{"number":%d}`, number)) {
				t.Errorf("%d: %+v", number, got)
			}
		})
	}
	all.Wait()
	if desk.greeted.Load() != 1 || desk.arrived.Load() != 100 {
		t.Errorf("%d hellos, %d requests", desk.greeted.Load(), desk.arrived.Load())
	}
}

func TestASidecarThatCannotServeIsNotSentAnything(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ hello, class string }{
		"only a later version":          {`{"protocol":[2],"name":"x"}`, "protocol_version"},
		"no JSON":                       {`hello`, "invalid_hello"},
		"too long":                      {strings.Repeat("x", 2000), "body_too_large"},
		"promises less than is assumed": {`{"protocol":[1],"name":"x","operations":{"open":"non_idempotent"}}`, "class_not_promised"},
		"does not know the operation":   {`{"protocol":[1],"name":"x","operations":{"shut":"read_only"}}`, "unknown_operation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			desk := newDesk()
			desk.hello = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.hello) }
			adapter := newAdapter(t, spec(desk.loopback(t), "max_message: 1024"))
			got := adapter.Dispatch(t.Context(), request(`{}`))
			dispatchtest.Expect(t, got, dispatch.NotSent, test.class)
			if desk.arrived.Load() != 0 {
				t.Error("it was sent")
			}
			ofOperation := test.class == "class_not_promised" || test.class == "unknown_operation"
			if got.OfOperation != ofOperation {
				t.Errorf("it speaks for this operation alone: %t, want %t", got.OfOperation, ofOperation)
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		t.Parallel()
		dispatchtest.Expect(t, newAdapter(t, spec("unix:///nowhere/at/all", "")).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "dial")
	})
	t.Run("is another service", func(t *testing.T) {
		t.Parallel()
		adapter := newAdapter(t, spec(dispatchtest.Serve(t, http.NotFoundHandler()), ""))
		dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "http_404")
	})
}

// A status may come from the framework or from a proxy. Only a result comes from the adapter.
func TestWhateverIsNoResultLeavesDoubt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter, id string)
		class  string
	}{
		"503": {func(w http.ResponseWriter, _ string) { w.WriteHeader(503) }, "http_503"},
		"429": {func(w http.ResponseWriter, _ string) { w.WriteHeader(429) }, "http_429"},
		"404": {func(w http.ResponseWriter, _ string) { w.WriteHeader(404) }, "http_404"},
		"307": {func(w http.ResponseWriter, _ string) { w.Header().Set("Location", "/"); w.WriteHeader(307) }, "http_307"},
		"a result, 500": {func(w http.ResponseWriter, id string) {
			w.WriteHeader(500)
			fmt.Fprintf(w, `{"id":%q,"outcome":"rejected"}`, id)
		}, "http_500"},
		"no body":      {func(http.ResponseWriter, string) {}, "protocol"},
		"a page":       {func(w http.ResponseWriter, _ string) { fmt.Fprint(w, "<html>") }, "protocol"},
		"another's id": {func(w http.ResponseWriter, _ string) { fmt.Fprint(w, `{"id":"x","outcome":"not_sent"}`) }, "protocol"},
		"no outcome":   {func(w http.ResponseWriter, id string) { fmt.Fprintf(w, `{"id":%q}`, id) }, "invalid_result"},
		"no such class": {func(w http.ResponseWriter, id string) {
			fmt.Fprintf(w, `{"id":%q,"outcome":"rejected","error_class":"No, Jane"}`, id)
		}, "invalid_result"},
		"too long": {func(w http.ResponseWriter, _ string) { fmt.Fprint(w, strings.Repeat("x", 5000)) }, "body_too_large"},
		"hangs up": {func(http.ResponseWriter, string) { panic(http.ErrAbortHandler) }, "reset"},
		"hangs up midway": {func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprintf(w, `{"id":%q,"outcome":"rejected"}`, id)
		}, "reset"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			desk := newDesk()
			desk.dispatch = func(w http.ResponseWriter, id string, _ []byte) { test.answer(w, id) }
			adapter := newAdapter(t, spec(desk.socket(t), "max_message: 4096"))
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, test.class)
			if desk.arrived.Load() != 1 {
				t.Errorf("it was sent %d times", desk.arrived.Load())
			}
			dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Ambiguous, test.class)
			if desk.greeted.Load() != 2 {
				t.Errorf("%d hellos: who is not understood must say who it is", desk.greeted.Load())
			}
		})
	}
}

func TestASidecarThatHangsLeavesDoubtOnce(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	released := make(chan struct{})
	hang := sync.OnceFunc(func() { close(released) })
	t.Cleanup(hang)
	ctx, expire := drainertest.Expiring(t)
	desk.dispatch = func(http.ResponseWriter, string, []byte) { expire(); <-released }
	adapter := newAdapter(t, spec(desk.socket(t), ""))
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`{}`)), dispatch.Ambiguous, "timeout")
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`{}`)), dispatch.NotSent, "timeout")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dispatchtest.Expect(t, adapter.Dispatch(ctx, request(`{}`)), dispatch.NotSent, "cancelled")
	hang()
}

func TestInFlightIsDoubtWhereACallMustNotBeRepeated(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	desk.dispatch = func(w http.ResponseWriter, id string, _ []byte) {
		fmt.Fprintf(w, `{"id":%q,"outcome":"in_flight","retry_after_ms":1500}`, id)
	}
	adapter := newAdapter(t, spec(desk.socket(t), ""))
	asked := request(`{}`)
	if got := adapter.Dispatch(t.Context(), asked); got.RetryAfter != 1500*time.Millisecond {
		t.Errorf("%+v", got)
	}
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), asked), dispatch.InFlight, "in_flight")
	asked.Tuple.ToolName = "desk/close"
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), asked), dispatch.Ambiguous, "in_flight")
}

func TestWhatCannotBeWrittenIsNotSent(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	adapter := newAdapter(t, spec(desk.socket(t), ""))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{`)), dispatch.Rejected, "unrenderable_request")
	asked := request(`{}`)
	asked.Tuple.ToolName = "desk/burn"
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), asked), dispatch.NotSent, "unconfigured_tool")
	if desk.arrived.Load() != 0 {
		t.Error("it was sent")
	}
}

func TestANameThatLeadsAwayIsNotFollowed(t *testing.T) {
	t.Parallel()
	url := newDesk().loopback(t)
	away := spec(strings.Replace(url, "127.0.0.1", "localhost", 1), "")
	away.Network = dispatch.NewNetwork(func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dispatch.PlainDialer().DialContext(ctx, network, strings.TrimPrefix(url, "http://"))
		return farConn{conn}, err
	}, nil)
	dispatchtest.Expect(t, newAdapter(t, away).Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "dial")
}

// farConn is a connection to another machine.
type farConn struct{ net.Conn }

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func TestOnlyThisMachineIsAnAddress(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"unix:///run/desk.sock":        "",
		"http://127.0.0.1:8090":        "",
		"http://127.8.9.1:8090/":       "",
		"'http://[::1]:8090'":          "",
		"http://localhost:8090":        "",
		"http://10.0.0.1:8090":         "on this machine",
		"http://example.com":           "on this machine",
		"http://localhost.evil:8090":   "on this machine",
		"http://0.0.0.0:8090":          "on this machine",
		"https://127.0.0.1:8090":       "neither unix nor http",
		"http://u:p@127.0.0.1":         "credentials",
		"http://127.0.0.1/v1":          "path",
		"http://127.0.0.1?x=1":         "query",
		"unix://run/desk.sock":         "three slashes",
		"unix:///":                     "three slashes",
		"''":                           "missing",
		"'http://127.0.0.1:80 canary'": "not a URL",
	} {
		_, err := sidecar.New(spec(url, ""))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%v repeats a value", err)
		}
	}
}

func TestWhatIsWrongWithTheSettingsIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	wrong := spec("ftp://x", "token: \"s3cret\\n\"\nmax_message: 7")
	wrong.Tools["open"] = dispatch.ToolSpec{Settings: dispatchtest.Block("map: .payload")}
	_, err := sidecar.New(wrong)
	for _, want := range []string{"url", "token", "max_message", "tool open:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing from %v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v repeats the token", err)
	}
}

func TestARestartedSidecarIsServedAgain(t *testing.T) {
	t.Parallel()
	desk := newDesk()
	var serving atomic.Bool
	desk.hello = func(w http.ResponseWriter, _ *http.Request) {
		if !serving.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, goodHello)
	}
	adapter := newAdapter(t, spec(desk.socket(t), ""))
	dispatchtest.Expect(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "http_503")
	serving.Store(true)
	got := adapter.Dispatch(t.Context(), request(`{}`))
	if dispatchtest.Expect(t, got, dispatch.Completed, ""); !json.Valid(got.Response) {
		t.Errorf("%s", got.Response)
	}
}
