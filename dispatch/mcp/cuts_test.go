package mcp_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
)

// cuttingProxy cuts each connection after budget bytes, in either direction.
type cuttingProxy struct {
	target string
	budget func() int64
}

func startCuttingProxy(t *testing.T, target string, budget func() int64) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p := &cuttingProxy{target, budget}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.carry(conn)
		}
	}()
	return listener.Addr().String()
}

func (p *cuttingProxy) carry(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	var directions sync.WaitGroup
	cut := func() {
		_ = client.Close()
		_ = server.Close()
	}
	for _, way := range []struct{ to, from net.Conn }{{server, client}, {client, server}} {
		limit := p.budget()
		directions.Go(func() {
			defer cut()
			_, _ = io.CopyN(way.to, way.from, limit)
		})
	}
	directions.Wait()
}

// However a connection breaks, a dispatch calls at most once, and what it
// says of the call is true.
func TestNoCutMakesASecondCallOrAFalseWord(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]endpointOptions{
		"current protocol": stateless,
		"sessions":         {versions: []string{legacy}},
		"JSON":             {versions: []string{legacy}, http: sdk.StreamableHTTPOptions{JSONResponse: true}},
		"resumable":        {versions: []string{legacy}, http: sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 0))
			e := startEndpoint(t, options)
			address := startCuttingProxy(t, e.address, func() int64 {
				mu.Lock()
				defer mu.Unlock()
				return 1 + random.Int64N(8000)
			})
			spec := specFor("{url: 'http://"+address+"/mcp'}", "{}", dispatch.KeyIdempotent)
			spec.Timeout = 10 * time.Second
			seen := dispatchMany(t, spec, 200)
			checkAgainstTheTill(t, e, seen)
		})
	}
}

// dispatchMany dispatches distinct intents, four at a time.
func dispatchMany(t *testing.T, spec dispatch.Spec, count int) map[string]dispatch.Result {
	t.Helper()
	adapter := build(t, spec)
	var mu sync.Mutex
	seen := make(map[string]dispatch.Result, count)
	var workers sync.WaitGroup
	for worker := range 4 {
		workers.Go(func() {
			for i := range count / 4 {
				request := intent(fmt.Sprintf("%d-%d", worker, i))
				got := adapter.Dispatch(t.Context(), request)
				mu.Lock()
				seen[request.IdempotencyKey] = got
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return seen
}

func checkAgainstTheTill(t *testing.T, e *endpoint, seen map[string]dispatch.Result) {
	t.Helper()
	arrived := make(map[string]int)
	for _, message := range e.calls() {
		arrived[message.Key]++
	}
	counts := make(map[dispatch.Outcome]int)
	for key, got := range seen {
		counts[got.Outcome]++
		executions := e.till.executions(key)
		switch {
		case arrived[key] > 1:
			t.Errorf("%d calls for one dispatch: %+v", arrived[key], got)
		case got.Outcome == dispatch.Completed && executions != 1:
			t.Errorf("completed, and executed %d times", executions)
		case executions > 0 && got.Outcome != dispatch.Completed && got.Outcome != dispatch.Ambiguous:
			t.Errorf("executed, and said to be %s, %s", got.Outcome, got.ErrorClass)
		}
	}
	t.Logf("outcomes %v", counts)
	for _, outcome := range []dispatch.Outcome{dispatch.Completed, dispatch.Ambiguous} {
		if counts[outcome] == 0 {
			t.Errorf("no dispatch ended as %s; the cuts prove nothing", outcome)
		}
	}
}

// The library would answer a demand for input by calling again.
func TestADemandForInputIsNotAnsweredByCallingAgain(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, stateless)
	e.takeCalls(resulting(`{"resultType":"input_required","inputRequests":{"r":{"method":"roots/list","params":{}}},"requestState":"s"}`))
	got := e.adapter(t, "{}", dispatch.KeyIdempotent).Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Ambiguous || !got.Final || len(e.calls()) != 1 {
		t.Errorf("%d calls, %+v", len(e.calls()), got)
	}
}

// A connection that the server closed while it was idle is the classic cause
// of a request that the transport sends again.
func TestAStaleConnectionDoesNotMakeASecondCall(t *testing.T) {
	t.Parallel()
	e := startEndpoint(t, endpointOptions{versions: []string{legacy}})
	adapter := e.adapter(t, "{}", dispatch.KeyIdempotent)
	adapter.Dispatch(t.Context(), intent("0"))
	e.takeCalls(func(w http.ResponseWriter, r *http.Request) { sever(w, r) })
	got := adapter.Dispatch(t.Context(), intent("1"))
	if got.Outcome != dispatch.Ambiguous || len(e.calls()) != 2 {
		t.Errorf("%d calls, %+v", len(e.calls()), got)
	}
}
