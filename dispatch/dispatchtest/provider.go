package dispatchtest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const maxRequestBody = 8 << 20

// SimulatedProvider answers every request with its effect's receipt, unless
// the plan says otherwise. It honours Idempotency-Key on all but GET: the same
// key again replays the stored reply octet for octet with Idempotency-Replay:
// true; with another body it is refused, and while the first is busy it is
// told so, both with 409.
//
// The fields are set before the first request and not changed afterwards.
type SimulatedProvider struct {
	Ledger     *Ledger           // required
	Plan       Plan              // nil never fails
	LookupPlan Plan              // the same for GET /effects/{key}, by the key asked about
	Declines   func(string) bool // by path, what is never done; nil does everything
	IgnoreKeys bool              // a provider that is not idempotent: every POST has an effect
	KeyTTL     time.Duration     // how long a key is remembered; for ever if zero
	Now        func() time.Time  // the clock of KeyTTL; time.Now if nil
	SlowFor    time.Duration     // how late a Slow reply comes; 1 s if zero
	RetryAfter time.Duration     // what a Retry-After asks for, in whole seconds; 1 s if zero

	mu      sync.Mutex
	busy    map[string]bool // keys with a request under way
	hanging gate
}

// ServeHTTP handles one request.
func (p *SimulatedProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if isLookup(r) {
		p.lookup(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBody))
	if err != nil {
		writeReply(w, http.StatusBadRequest, problem(http.StatusBadRequest, "The request body cannot be read"))
		return
	}
	key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	digest := sha256.Sum256(body)
	entry := Entry{At: time.Now(), Key: key, Method: r.Method, Path: r.URL.Path, Body: hex.EncodeToString(digest[:])}
	fault, err := p.admit(entry)
	if err != nil {
		unwritten(w)
		return
	}
	if !p.failedBefore(w, fault) {
		p.serve(w, r, entry, fault)
	}
}

// admit records the request and chooses its fault. A key that is taken brings
// somebody else's answer from now on, to a body that nobody here sends.
func (p *SimulatedProvider) admit(entry Entry) (Fault, error) {
	fault, err := p.Ledger.addRequest(entry, p.planFor(entry.Path))
	if err == nil && fault == Taken {
		_, err = p.Ledger.addAnswer(Entry{At: p.now(), Key: entry.Key, Reply: receipt(entry.Path)("")})
	}
	return fault, err
}

// planFor leaves to what is declined the faults that come before an effect.
func (p *SimulatedProvider) planFor(path string) Plan {
	plan := orHealthy(p.Plan)
	if p.Declines == nil || !p.Declines(path) {
		return plan
	}
	return func(key string, request int) Fault {
		fault := plan(key, request)
		if _, refused := refusals[fault]; refused || fault == DropBefore {
			return fault
		}
		return Declined
	}
}

func orHealthy(plan Plan) Plan {
	if plan == nil {
		return Healthy()
	}
	return plan
}

// failedBefore has the faults of requests that never get as far as an effect.
func (p *SimulatedProvider) failedBefore(w http.ResponseWriter, fault Fault) bool {
	if fault == DropBefore {
		drop()
	}
	_, refused := refusals[fault]
	if refused {
		p.refuse(w, fault)
	}
	return refused
}

func (p *SimulatedProvider) serve(w http.ResponseWriter, r *http.Request, entry Entry, fault Fault) {
	if p.honours(entry) {
		if !p.begin(entry.Key) {
			p.refuse(w, Outstanding)
			return
		}
		defer p.end(entry.Key)
		if kept, found := p.remembers(entry.Key); found {
			p.replay(w, r, entry, kept, fault)
			return
		}
	}
	p.pause(r.Context(), fault, Slow, HangBefore)
	answer, err := p.act(entry, fault)
	if err != nil {
		unwritten(w)
		return
	}
	p.pause(r.Context(), fault, HangAfter)
	if !p.failedAfter(w, fault) {
		p.reply(w, answer, fault)
	}
}

// act has the effect and returns what the provider answers from then on.
func (p *SimulatedProvider) act(entry Entry, fault Fault) (Entry, error) {
	entry.At = p.now()
	reply := receipt(entry.Path)
	switch fault {
	case SavedErrorBefore, SavedErrorAfter, ErrorForGood:
		entry.Status = http.StatusInternalServerError
		reply = func(string) json.RawMessage { return savedError }
	}
	switch {
	case entry.Method == http.MethodGet:
		entry.Reply = reply("")
		return entry, nil
	case fault == SavedErrorBefore:
		entry.Reply = reply("")
		return p.Ledger.addAnswer(entry)
	}
	return p.Ledger.addEffect(entry, reply)
}

var savedError = problem(http.StatusInternalServerError, "Something went wrong, and so it stays")

func (p *SimulatedProvider) replay(w http.ResponseWriter, r *http.Request, entry, kept Entry, fault Fault) {
	if kept.Body != entry.Body {
		p.refuse(w, Taken)
		return
	}
	p.pause(r.Context(), fault, Slow, HangBefore, HangAfter)
	if !p.failedAfter(w, fault) {
		w.Header().Set("Idempotency-Replay", "true")
		p.reply(w, kept, fault)
	}
}

// failedAfter has the faults that leave nothing of the answer. An error here
// is no replay, even where the answer would have been.
func (p *SimulatedProvider) failedAfter(w http.ResponseWriter, fault Fault) bool {
	switch fault {
	case DropAfter:
		drop()
	case ErrorAfter:
		p.refuse(w, ErrorBefore)
		return true
	}
	return false
}

func (p *SimulatedProvider) reply(w http.ResponseWriter, answer Entry, fault Fault) {
	reply := answer.Reply
	switch fault {
	case ErrorForGood:
		w.Header().Set("Stripe-Should-Retry", "false")
	case MalformedReply:
		reply = reply[:len(reply)/2]
	}
	w.Header().Set("Request-Id", "req_"+answer.ID)
	writeReply(w, answer.status(), reply)
}

func unwritten(w http.ResponseWriter) {
	writeReply(w, http.StatusInternalServerError, problem(http.StatusInternalServerError, "The ledger cannot be written"))
}
