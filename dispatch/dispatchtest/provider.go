package dispatchtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const maxRequestBody = 8 << 20

// SimulatedProvider answers every request with an effect and its receipt,
// unless the plan says otherwise. It honours Idempotency-Key: the same key
// again replays the stored reply octet for octet with Idempotency-Replay:
// true; with another body it is refused, and while the first is busy it is
// told so, both with 409.
//
// The fields are set before the first request and not changed afterwards.
type SimulatedProvider struct {
	Ledger     *Ledger       // required
	Plan       Plan          // nil never fails
	IgnoreKeys bool          // every request has an effect: a provider that is not idempotent
	SlowFor    time.Duration // how late a Slow reply comes; 1 s if zero
	RetryAfter time.Duration // what 429 asks for, in whole seconds; 1 s if zero

	mu       sync.Mutex
	busy     map[string]bool // keys with a request under way
	released chan struct{}   // made at first use, closed by Release
	open     bool
}

// ServeHTTP handles one request.
func (p *SimulatedProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err != nil {
		problem(w, http.StatusBadRequest, "The request body cannot be read")
		return
	}
	key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	digest := sha256.Sum256(body)
	entry := Entry{At: time.Now(), Key: key, Method: r.Method, Path: r.URL.Path, Body: hex.EncodeToString(digest[:])}
	fault, err := p.Ledger.addRequest(entry, p.plan())
	if err != nil {
		problem(w, http.StatusInternalServerError, "The ledger cannot be written")
		return
	}
	p.failOrServe(w, r, entry, fault)
}

func (p *SimulatedProvider) plan() Plan {
	if p.Plan == nil {
		return Healthy()
	}
	return p.Plan
}

// failOrServe has the faults that come before an effect; serve has the rest.
func (p *SimulatedProvider) failOrServe(w http.ResponseWriter, r *http.Request, entry Entry, fault Fault) {
	switch fault {
	case Throttle:
		w.Header().Set("Retry-After", wholeSeconds(p.RetryAfter))
		problem(w, http.StatusTooManyRequests, "Too many requests")
	case Unavailable:
		problem(w, http.StatusServiceUnavailable, "Unavailable")
	case Overloaded:
		problem(w, 529, "Overloaded")
	case DropBefore:
		drop()
	default:
		p.serve(w, r, entry, fault)
	}
}

func (p *SimulatedProvider) serve(w http.ResponseWriter, r *http.Request, entry Entry, fault Fault) {
	if p.honours(entry.Key) {
		if !p.begin(entry.Key) {
			w.Header().Set("Retry-After", "1")
			problem(w, http.StatusConflict, "A request is outstanding for this Idempotency-Key")
			return
		}
		defer p.end(entry.Key)
		if stored, found := p.Ledger.storedEffect(entry.Key); found {
			p.replay(w, r, entry, stored, fault)
			return
		}
	}
	p.pause(r.Context(), fault, Slow, HangBefore)
	effect, err := p.Ledger.addEffect(entry, receipt(entry))
	if err != nil {
		problem(w, http.StatusInternalServerError, "The ledger cannot be written")
		return
	}
	p.reply(w, r, effect, fault)
}

func (p *SimulatedProvider) replay(w http.ResponseWriter, r *http.Request, entry, stored Entry, fault Fault) {
	if stored.Body != entry.Body {
		problem(w, http.StatusConflict, "This Idempotency-Key was used with another payload")
		return
	}
	p.pause(r.Context(), fault, Slow, HangBefore)
	w.Header().Set("Idempotency-Replay", "true")
	p.reply(w, r, stored, fault)
}

// reply has the faults that come after an effect.
func (p *SimulatedProvider) reply(w http.ResponseWriter, r *http.Request, effect Entry, fault Fault) {
	p.pause(r.Context(), fault, HangAfter)
	reply := []byte(effect.Reply)
	switch fault {
	case ErrorAfter:
		problem(w, http.StatusInternalServerError, "Something went wrong")
		return
	case DropAfter:
		drop()
	case MalformedReply:
		reply = reply[:len(reply)/2]
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Request-Id", "req_"+effect.ID)
	_, _ = w.Write(reply) // the client may be gone; the ledger knows
}

// honours reports whether a key protects from a second effect.
func (p *SimulatedProvider) honours(key string) bool { return key != "" && !p.IgnoreKeys }

func (p *SimulatedProvider) begin(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[key] {
		return false
	}
	if p.busy == nil {
		p.busy = map[string]bool{}
	}
	p.busy[key] = true
	return true
}

func (p *SimulatedProvider) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, key)
}

// Release lets every hanging request go on, and every later one pass. It may
// be called more than once.
func (p *SimulatedProvider) Release() {
	gate := p.gate()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		p.open = true
		close(gate)
	}
}

func (p *SimulatedProvider) gate() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.released == nil {
		p.released = make(chan struct{})
	}
	return p.released
}

// pause waits if the fault is one of those named. A client that hangs up does
// not end a hang, as it would not stop a real provider's work; but it need
// not wait for a slow reply.
func (p *SimulatedProvider) pause(ctx context.Context, fault Fault, among ...Fault) {
	for _, named := range among {
		if fault != named {
			continue
		}
		if fault == Slow {
			p.dawdle(ctx)
		} else {
			<-p.gate()
		}
	}
}

func (p *SimulatedProvider) dawdle(ctx context.Context) {
	wait := p.SlowFor
	if wait == 0 {
		wait = time.Second
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// drop closes the connection without a reply.
func drop() { panic(http.ErrAbortHandler) }

func receipt(entry Entry) func(id string) json.RawMessage {
	return func(id string) json.RawMessage {
		reply, err := json.Marshal(struct {
			ID     string `json:"id"`
			Object string `json:"object"`
			Path   string `json:"path"`
		}{id, "effect", entry.Path})
		if err != nil {
			panic(errors.New("dispatchtest: a receipt cannot be written as JSON"))
		}
		return reply
	}
}

func problem(w http.ResponseWriter, status int, title string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": title, "status": status})
}

func wholeSeconds(wait time.Duration) string {
	if wait == 0 {
		wait = time.Second
	}
	return strconv.Itoa(int(math.Ceil(wait.Seconds())))
}
