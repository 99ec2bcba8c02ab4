package faults_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/world"
)

// What may take the memory of a daemon that reads it to its end.
func TestAHugeReplyDoesNotGrowTheDaemon(t *testing.T) {
	t.Parallel()
	const (
		intents = 32 // twice what is in flight at once
		most    = 128 << 20
	)
	bomb := newBomb()
	for name, garble := range map[string]http.HandlerFunc{
		"endless":  func(w http.ResponseWriter, _ *http.Request) { pour(w) },
		"gigabyte": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1073741824"); pour(w) },
		"gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world.New(t, nil)
			garbler := newGarbler(t, w, garble)
			w.Reconfigure(patient)
			daemon := w.Start()
			before := peakMemory(t, daemon.PID())
			w.Enqueue(world.Keyed, intents)
			w.AwaitRest()
			fault.Injected(t, 45, garbler.met())
			if grown := peakMemory(t, daemon.PID()) - before; grown > most {
				t.Errorf("the daemon's memory grew by %d MiB", grown>>20)
			}
			if cut := w.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'ambiguous' AND error = 'body_too_large'`); cut != intents {
				t.Errorf("%d replies were cut off, want %d", cut, intents)
			}
			w.Check()
		})
	}
}

// pour writes until nobody reads.
func pour(to io.Writer) {
	megabyte := make([]byte, 1<<20)
	for {
		if _, err := to.Write(megabyte); err != nil {
			return
		}
	}
}

// newBomb is 32 MiB that look like 32 KiB.
func newBomb() []byte {
	var small bytes.Buffer
	zipped := gzip.NewWriter(&small)
	_, _ = zipped.Write(make([]byte, 32<<20))
	_ = zipped.Close()
	return small.Bytes()
}

func TestAReplyThatTricklesIsGivenUpAtTheDeadline(t *testing.T) {
	t.Parallel()
	const intents = 16
	for name, begins := range map[string]string{
		"its header": "HTTP/1.1 200 OK\r\nX-Long: ",
		"its body":   "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world.New(t, nil)
			garbler := newGarbler(t, w, func(w http.ResponseWriter, _ *http.Request) { trickle(w, begins) })
			w.Start()
			w.Enqueue(world.Keyed, intents)
			w.AwaitRest()
			fault.Injected(t, 46, garbler.met())
			if late := w.Count(`SELECT count(DISTINCT intent_id) FROM outbox.attempt WHERE error = 'timeout' AND finished_at - started_at BETWEEN '0.9 s' AND '30 s'`); late != intents {
				t.Errorf("%d replies were given up after the second that they may take, want %d", late, intents)
			}
			w.Check()
		})
	}
}

// trickle writes an octet at a time until the client hangs up.
func trickle(w http.ResponseWriter, begins string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, err = io.WriteString(conn, begins)
	drop := time.NewTicker(20 * time.Millisecond)
	defer drop.Stop()
	for err == nil {
		<-drop.C
		_, err = io.WriteString(conn, "x")
	}
}

// Postgres takes neither NUL nor half a character.
func TestAFailureIsRecordedWhateverItsWords(t *testing.T) {
	t.Parallel()
	const intents = 20
	for name, words := range map[string]string{
		"NUL":            `{"title": "no \u0000 way", "detail": "\u0000"}`,
		"lone surrogate": `{"title": "no \ud800 way", "detail": "\udfff"}`,
		"no UTF-8":       "{\"title\": \"no \xff way\", \"detail\": \"\xc3\"}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world.New(t, nil)
			garbler := newGarbler(t, w, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, words)
			})
			w.Reconfigure(patient)
			w.Start()
			w.Enqueue(world.Keyed, intents)
			w.AwaitRest()
			fault.Injected(t, 47, garbler.met())
			if recorded := w.Count(`SELECT count(*) FROM outbox.attempt WHERE http_status = 500 AND problem ->> 'title' LIKE 'no _ way'`); recorded != intents {
				t.Errorf("%d failures are recorded with their words, want %d", recorded, intents)
			}
			w.Check()
		})
	}
}
