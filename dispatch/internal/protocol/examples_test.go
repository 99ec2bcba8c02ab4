package protocol_test

import (
	"bufio"
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
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/exec"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
	"github.com/agentoutbox/drainer/internal/child"
)

// languages has the command that runs each example.
var languages = map[string][]string{
	"python": {"python3", "python/tickets.py"},
	"node":   {"node", "node/tickets.mjs"},
}

// program returns the command line of an example. It skips the test if the interpreter is missing.
func program(t testing.TB, language string, arguments ...string) []string {
	t.Helper()
	command := languages[language]
	interpreter, err := osexec.LookPath(command[0])
	if err != nil {
		t.Skipf("%s is not installed", command[0])
	}
	script, err := filepath.Abs("../../../examples/adapters/" + command[1])
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{interpreter, script}, arguments...)
}

// transports connect an adapter to an example that keeps its tickets in a file.
var transports = map[string]func(t testing.TB, language, file string) dispatch.Adapter{
	"exec": func(t testing.TB, language, file string) dispatch.Adapter {
		return build(t, exec.Kind(), "command: "+toJSON(program(t, language, "--file", file)))
	},
	"sidecar": func(t testing.TB, language, file string) dispatch.Adapter {
		return build(t, sidecar.Kind(), "{url: 'unix://"+serve(t, language, "--file", file)+"', token: t0k3n}")
	},
}

func build(t testing.TB, kind dispatch.Kind, settings string) dispatch.Adapter {
	t.Helper()
	adapter, err := kind.New(dispatch.Spec{
		Provider: "desk",
		Timeout:  30 * time.Second,
		Settings: dispatchtest.Block(settings),
		Tools: map[string]dispatch.ToolSpec{
			"open_ticket":  {Class: dispatch.KeyIdempotent, KeyTTL: time.Hour},
			"close_ticket": {Class: dispatch.NonIdempotent},
			"find_ticket":  {Class: dispatch.ReadOnly, AnswersLookups: true},
			"burn_ticket":  {Class: dispatch.NonIdempotent},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adapter.(io.Closer).Close(); err != nil {
			t.Error(err)
		}
	})
	return adapter
}

// serve starts an example as a sidecar and returns its socket.
func serve(t testing.TB, language string, arguments ...string) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "sidecar") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	socket := filepath.Join(directory, "s")
	line := program(t, language, append(arguments, "--unix", socket)...)
	command := osexec.Command(line[0], line[1:]...)
	command.Env = append(os.Environ(), "TICKETS_TOKEN=t0k3n")
	command.Stderr = os.Stderr
	process, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Signal(syscall.SIGKILL)
		<-process.Ended()
	})
	await(t, process, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return socket
}

func await(t testing.TB, process *child.Process, ready func() bool) {
	t.Helper()
	for !ready() {
		select {
		case <-process.Ended():
			t.Fatalf("it ended: %v", process.Failure())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func call(step, operation, payload string) dispatch.Request {
	tuple := dispatch.Tuple{AgentRunID: "run-001", StepID: step, ToolName: "desk/" + operation, BusinessScope: "case_7"}
	acting := tuple
	acting.ToolName = "desk/open_ticket" // a lookup has the key of the intent that it looks up
	return dispatch.Request{Tuple: tuple, IdempotencyKey: acting.IdempotencyKey(), Payload: json.RawMessage(payload), Attempt: 1}
}

func eachExample(t *testing.T, test func(t *testing.T, language, transport string)) {
	for language := range languages {
		for transport := range transports {
			t.Run(language+" "+transport, func(t *testing.T) {
				t.Parallel()
				test(t, language, transport)
			})
		}
	}
}

func TestTheExamplesDoWhatTheirProtocolPromises(t *testing.T) {
	t.Parallel()
	eachExample(t, func(t *testing.T, language, transport string) {
		adapter := transports[transport](t, language, filepath.Join(t.TempDir(), "tickets"))
		ticket := func(number int, title, status string) dispatch.Result {
			response := fmt.Sprintf(`{"number":%d,"title":%q,"status":%q}`, number, title, status)
			return dispatch.Result{Outcome: dispatch.Completed, ProviderRef: fmt.Sprint(number), Response: json.RawMessage(response)}
		}
		replayed := ticket(1, "a \u2028 b", "open")
		replayed.Replayed = true
		refused := func(class string) dispatch.Result {
			return dispatch.Result{Outcome: dispatch.Rejected, ErrorClass: class}
		}
		for _, step := range []struct {
			name    string
			request dispatch.Request
			want    dispatch.Result
		}{
			{"not opened yet", call("1", "find_ticket", `{"title":"x"}`), dispatch.Result{Outcome: dispatch.Absent, ErrorClass: "absent"}},
			{"opened", call("1", "open_ticket", "{\"title\":\n\"a \u2028 b\"}"), ticket(1, "a \u2028 b", "open")},
			{"opened again", call("1", "open_ticket", "{\"title\":\"a \u2028 b\"}"), replayed},
			{"another title under the key", call("1", "open_ticket", `{"title":"y"}`), refused("key_reused")},
			{"another key", call("2", "open_ticket", `{"title":"x"}`), ticket(2, "x", "open")},
			{"no title", call("3", "open_ticket", `{}`), refused("title_missing")},
			{"no object", call("3", "open_ticket", `[9007199254740993]`), refused("title_missing")},
			{"strange, and none of its business", call("3", "open_ticket", `{"title":7,"a":`+strings.Repeat("[", 499)+strings.Repeat("9", 20_000)+strings.Repeat("]", 499)+`}`), refused("title_missing")},
			{"half a character", call("7", "open_ticket", `{"title":"\ud800"}`), ticket(3, "\ufffd", "open")},
			{"closed", call("4", "close_ticket", `{"number":2}`), ticket(2, "x", "closed")},
			{"found", call("2", "find_ticket", `{"title":"x"}`), ticket(2, "x", "closed")},
			{"no such ticket", call("5", "close_ticket", `{"number":77}`), refused("no_such_ticket")},
			{"not in the hello", call("6", "burn_ticket", `{}`), dispatch.Result{Outcome: dispatch.NotSent, ErrorClass: "unknown_operation"}},
		} {
			if got := adapter.Dispatch(t.Context(), step.request); compact(got) != compact(step.want) {
				t.Errorf("%s: %s, want %s", step.name, compact(got), compact(step.want))
			}
		}
	})
}

// compact returns a result as text. Spaces and escapes in its JSON make no difference.
func compact(result dispatch.Result) string {
	var response any
	if len(result.Response) > 0 && json.Unmarshal(result.Response, &response) != nil {
		return "no JSON: " + string(result.Response)
	}
	return toJSON(result.Outcome) + result.ErrorClass + result.ProviderRef + fmt.Sprint(result.Replayed) + toJSON(response)
}

func toJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}

func TestTheExamplesRememberAcrossARestart(t *testing.T) {
	t.Parallel()
	eachExample(t, func(t *testing.T, language, transport string) {
		file := filepath.Join(t.TempDir(), "tickets")
		t.Run("before", func(t *testing.T) {
			adapter := transports[transport](t, language, file)
			if got := adapter.Dispatch(t.Context(), call("1", "open_ticket", `{"title":"x"}`)); got.Outcome != dispatch.Completed {
				t.Fatalf("%+v", got)
			}
		})
		torn, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = torn.WriteString("\n" + `{"number":2,"key":"cut sho`)
		torn.Close()
		adapter := transports[transport](t, language, file)
		if got := adapter.Dispatch(t.Context(), call("1", "open_ticket", `{"title":"x"}`)); !got.Replayed || got.ProviderRef != "1" {
			t.Errorf("%+v", got)
		}
	})
}

// A pool of threads has a queue. A request that waited there beyond its deadline is in doubt for drainer. A lookup
// may have found it absent by now.
func TestTheExampleWithAPoolBeginsNothingAfterItsDeadline(t *testing.T) {
	t.Parallel()
	line := program(t, "python")
	script := `import time, tickets
class Slow(tickets.Desk):
    def open_ticket(self, key, payload):
        time.sleep(2)
        return super().open_ticket(key, payload)
tickets.serve_lines(Slow())`
	command := osexec.Command(line[0], "-c", script)
	command.Env = append(os.Environ(), "PYTHONPATH="+filepath.Dir(line[1]), "PYTHONDONTWRITEBYTECODE=1")
	said := bytes.NewBuffer(protocol.Greeting())
	const room, late = 16, 4 // room is the number of the pool's threads, late the number of further requests
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	for i := range room + late {
		request := call(fmt.Sprint(i), "open_ticket", `{"title":"x"}`)
		if i < room {
			said.Write(encode(t, fmt.Sprint(i), request))
			continue
		}
		text, err := protocol.Encode(ctx, fmt.Sprint(i), request)
		if err != nil {
			t.Fatal(err)
		}
		said.Write(text)
	}
	command.Stdin = said
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	if done, refused := bytes.Count(output, []byte(`"completed"`)), bytes.Count(output, []byte(`"not_sent"`)); done != room || refused != late {
		t.Errorf("%d were done and %d were not begun, want %d and %d", done, refused, room, late)
	}
}

var requests = []dispatch.Request{
	call("1", "open_ticket", `{"title":"x"}`), call("1", "open_ticket", `{"title":"x"}`), call("1", "open_ticket", `{"title":"y"}`),
	call("1", "find_ticket", `{}`), call("2", "find_ticket", `{}`), call("3", "burn_ticket", `{}`), call("4", "close_ticket", `{"number":1}`),
}

func TestEveryLineOfTheExamplesIsAsPublished(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			line := program(t, language)
			command := osexec.Command(line[0], line[1:]...)
			said := bytes.NewBuffer(protocol.Greeting())
			for i, request := range requests {
				said.Write(encode(t, fmt.Sprint(i), request))
			}
			command.Stdin = said
			output, err := command.Output()
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(bytes.NewReader(output))
			for kind := "hello"; lines.Scan(); kind = "result" {
				schema.Check(t, kind, lines.Bytes())
			}
			if count := bytes.Count(output, []byte("\n")); count != len(requests)+1 {
				t.Errorf("%d lines for a hello and %d requests", count, len(requests))
			}
		})
	}
}

func TestEveryBodyOfTheExamplesIsAsPublished(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			desk := newPlainClient(t, serve(t, language))
			schema.Check(t, "hello", desk.ask(http.MethodGet, "/v1/hello", nil, http.StatusOK))
			for i, request := range requests {
				schema.Check(t, "result", desk.ask(http.MethodPost, "/v1/dispatch", encode(t, fmt.Sprint(i), request), http.StatusOK))
			}
			desk.ask(http.MethodGet, "/", nil, http.StatusNotFound)
			desk.token = "guessed"
			desk.ask(http.MethodGet, "/v1/hello", nil, http.StatusUnauthorized)
			desk.ask(http.MethodPost, "/v1/dispatch", encode(t, "1", requests[0]), http.StatusUnauthorized)
		})
	}
}

func encode(t testing.TB, id string, request dispatch.Request) []byte {
	t.Helper()
	line, err := protocol.Encode(t.Context(), id, request)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// plainClient is a client without knowledge of the protocol.
type plainClient struct {
	t     *testing.T
	http  http.Client
	token string
}

func newPlainClient(t *testing.T, socket string) *plainClient {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dispatch.PlainDialer().DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &plainClient{t: t, http: http.Client{Transport: transport}, token: "t0k3n"}
}

func (c *plainClient) ask(method, path string, body []byte, status int) []byte {
	c.t.Helper()
	request, err := http.NewRequest(method, "http://sidecar"+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(request)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != status {
		c.t.Errorf("%s %s: %s, want %d, %v", method, path, response.Status, status, err)
	}
	return answer
}

var tuple = dispatch.Tuple{AgentRunID: "run-001", StepID: "step-1", ToolName: "desk/open", BusinessScope: "case_7"}

func TestWhatDrainerSaysIsAsPublished(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	schema.Check(t, "hello", protocol.Greeting())
	for name, request := range map[string]dispatch.Request{
		"plain":       {Payload: json.RawMessage(`{}`)},
		"no payload":  {},
		"big numbers": {Payload: json.RawMessage(`[9007199254740993, 1e400, 1.0]`)},
		"lookup":      {Payload: json.RawMessage(`"x"`), ProviderRef: "T-7"},
		"traced":      {Payload: json.RawMessage(`null`), Headers: map[string]string{"TraceParent": "00-ab", "baggage": "a=b", "cookie": "no"}},
	} {
		request.Tuple, request.IdempotencyKey, request.Attempt = tuple, tuple.IdempotencyKey(), 2
		line, err := protocol.Encode(t.Context(), "1", request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		schema.Check(t, "request", line)
		if bytes.Count(line, []byte("\n")) != 1 {
			t.Errorf("%s is not one line: %q", name, line)
		}
	}
}

func TestNothingInALineLooksLikeItsEnd(t *testing.T) {
	t.Parallel()
	const text = "next\u0085line\u2028paragraph\u2029\r\n"
	asked := dispatch.Request{Tuple: tuple, Payload: json.RawMessage("{\n\"a\":\"next\u0085line\u2028paragraph\u2029\\r\\n\"}")}
	asked.Tuple.BusinessScope = text
	line, err := protocol.Encode(t.Context(), "1", asked)
	if err != nil {
		t.Fatal(err)
	}
	if end := bytes.IndexFunc(line, func(r rune) bool { return strings.ContainsRune("\n\v\f\r\u0085\u2028\u2029", r) }); end != len(line)-1 {
		t.Errorf("a line ends at %d of %q", end, line)
	}
	var read protocol.Request
	if err := json.Unmarshal(line, &read); err != nil {
		t.Fatal(err)
	}
	var payload struct{ A string }
	if err := json.Unmarshal(read.Payload, &payload); err != nil || payload.A != text || read.Tuple.BusinessScope != text {
		t.Errorf("%q arrived as %q and %q, %v", text, payload.A, read.Tuple.BusinessScope, err)
	}
}

func TestAPayloadThatOthersCannotReadIsNotSent(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for payload, sent := range map[string]bool{
		nested(500):                             true,
		nested(501):                             false,
		`{"a":` + nested(499) + `}`:             true,
		`{"a":` + nested(500) + `}`:             false,
		`"` + strings.Repeat(`[\"{`, 600) + `"`: true,
		`{"a":`:                                 false,
	} {
		_, err := protocol.Encode(t.Context(), "1", dispatch.Request{Tuple: tuple, Payload: json.RawMessage(payload)})
		if (err == nil) != sent {
			t.Errorf("%.20s…: %v", payload, err)
		}
	}
}

// drainer reads exactly the results that the published schema permits.
func TestTheSchemaKnowsAResultAsDrainerDoes(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for text, valid := range map[string]bool{
		`{"id":"1","outcome":"completed"}`:                                  true,
		`{"id":"1","outcome":"completed","response":{"a":[1]},"extra":1}`:   true,
		`{"id":"1","outcome":"throttled","retry_after_ms":0.5}`:             true,
		`{"id":"1","outcome":"rejected","problem":{"title":"No"}}`:          true,
		`{"id":"1","outcome":"rejected","problem":null,"error_class":null}`: true,
		`{"id":"1","outcome":"ambiguous","final":true,"http_status":500}`:   true,
		`{"id":"1","outcome":"lost"}`:                                       false,
		`{"id":"1"}`:                                                        false,
		`{"id":1,"outcome":"completed"}`:                                    false,
		`{"outcome":"completed"}`:                                           false,
		`{"id":"1","outcome":"rejected","error_class":"No way"}`:            false,
		`{"id":"1","outcome":"rejected","http_status":99}`:                  false,
		`{"id":"1","outcome":"rejected","http_status":"200"}`:               false,
		`{"id":"1","outcome":"throttled","retry_after_ms":-1}`:              false,
		`{"id":"1","outcome":"rejected","problem":"No"}`:                    false,
		`[]`:   false,
		`null`: false,
	} {
		if _, err := protocol.ParseResult([]byte(text)); (err == nil) != valid {
			t.Errorf("%s is read with %v", text, err)
		}
		if err := schema.Validate("result", []byte(text)); (err == nil) != valid {
			t.Errorf("%s is published with %v", text, err)
		}
	}
}

func TestTheSchemaKnowsAHelloAsDrainerDoes(t *testing.T) {
	t.Parallel()
	schema := protocoltest.Published(t)
	for text, valid := range map[string]bool{
		`{"protocol":[1],"name":"x"}`:                                     true,
		`{"protocol":[1,2],"name":"x","operations":{"open":"read_only"}}`: true,
		`{"protocol":[1],"name":"x","operations":null}`:                   true,
		`{"protocol":[],"name":"x"}`:                                      false,
		`{"protocol":1,"name":"x"}`:                                       false,
		`{"protocol":[1],"name":""}`:                                      false,
		`{"protocol":[1]}`:                                                false,
		`{"protocol":[1],"name":"x","operations":{"open":"safe"}}`:        false,
		`{"protocol":[1],"name":"x","operations":{"":"read_only"}}`:       false,
		`{"protocol":[1],"name":"x","operations":["open"]}`:               false,
		`{"Protocol":[1],"name":"x"}`:                                     false,
	} {
		if _, class := protocol.ParseHello([]byte(text)); (class == "") != valid {
			t.Errorf("%s is read with %q", text, class)
		}
		if err := schema.Validate("hello", []byte(text)); (err == nil) != valid {
			t.Errorf("%s is published with %v", text, err)
		}
	}
}
