package sidecar_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/dispatch/internal/protocol/protocoltest"
	"github.com/agentoutbox/drainer/dispatch/sidecar"
	"github.com/agentoutbox/drainer/internal/child"
)

func TestTheSidecarAdapterConforms(t *testing.T) {
	for _, class := range []dispatch.Class{dispatch.KeyIdempotent, dispatch.NonIdempotent} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			cannot := map[dispatchtest.Situation]string{}
			if class == dispatch.NonIdempotent {
				cannot[dispatchtest.Busy] = "who must not be asked again is not told to ask again"
			}
			dispatchtest.Conform(t, dispatchtest.Subject{Kind: sidecar.Kind(), Class: class, Start: startPlayer, Cannot: cannot})
		})
	}
}

const token = "token-9d41c07e"

func startPlayer(t *testing.T) dispatchtest.Counterpart {
	p := &player{t: t, stage: protocoltest.NewStage(t), address: freeAddress(t)}
	p.start()
	t.Cleanup(p.end)
	return dispatchtest.Counterpart{
		Settings: "{url: 'http://" + p.address + "', token: " + token + "}",
		Payload:  json.RawMessage(`{"amount": 100, "memo": "canary-in-the-payload", "b": {"z": 1, "a": [2]}}`),
		Exact:    json.RawMessage(`{"amount": 123456789012345678901234567890, "rate": 0.1000000000000000055511151231257827}`),
		Secrets:  []string{token},
		Received: p.stage.Received,
		Enter:    p.enter,
	}
}

// player is a sidecar in a process of its own, which does as it is directed.
type player struct {
	t       *testing.T
	stage   *protocoltest.Stage
	address string
	process *child.Process // nil where it is not there
}

func (p *player) enter(situation dispatchtest.Situation) {
	if situation == dispatchtest.Unreachable {
		p.end()
	}
	p.stage.Enter(situation)
	if situation != dispatchtest.Unreachable && p.process == nil {
		p.start()
	}
}

func (p *player) start() {
	command := osexec.Command(os.Args[0])
	command.Env = []string{"STAGE=" + p.stage.Path(), "ADDRESS=" + p.address}
	command.Stderr = os.Stderr
	process, err := child.StartGroup(command, syscall.SIGKILL)
	if err != nil {
		p.t.Fatal(err)
	}
	p.process = process
	for {
		conn, err := net.Dial("tcp", p.address)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-process.Ended():
			p.t.Fatalf("the sidecar ended: %v", process.Failure())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *player) end() {
	if p.process != nil {
		_ = p.process.Signal(syscall.SIGKILL)
		<-p.process.Ended()
		p.process = nil
	}
}

func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// bePlayer is the process.
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
