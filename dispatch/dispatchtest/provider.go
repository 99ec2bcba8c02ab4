package dispatchtest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const maxRequestBody = 8 << 20

// SimulatedProvider answers every request with the receipt of its effect, unless the plan chooses a fault. It
// honours Idempotency-Key on all methods but GET. The same key again returns the stored reply byte for byte, with
// Idempotency-Replay: true. It refuses the same key with another body, or while the first request is under way, with
// 409.
//
// The fields are set before the first request and must not be changed afterwards.
type SimulatedProvider struct {
	Ledger     *Ledger           // required
	Plan       Plan              // nil makes no faults
	LookupPlan Plan              // the plan of GET /effects/{key}, by the key of the lookup
	Declines   func(string) bool // reports, by path, whether requests are refused; nil for none
	IgnoreKeys bool              // the provider is not idempotent: every POST has an effect
	KeyTTL     time.Duration     // for how long a key is remembered; forever if zero
	Now        func() time.Time  // the clock of KeyTTL; time.Now if nil
	SlowFor    time.Duration     // the delay of a Slow reply; 1 s if zero
	RetryAfter time.Duration     // the wait in a Retry-After, in whole seconds; 1 s if zero

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

// admit records the request and chooses its fault. With the fault Taken, the key returns another client's answer
// from now on.
func (p *SimulatedProvider) admit(entry Entry) (Fault, error) {
	fault, err := p.Ledger.addRequest(entry, p.planFor(entry.Path))
	if err == nil && fault == Taken {
		_, err = p.Ledger.addAnswer(Entry{At: p.now(), Key: entry.Key, Reply: receipt(entry.Path)("")})
	}
	return fault, err
}

// planFor returns the plan for a path. On a path that is declined, it keeps the faults that come before an effect
// and replaces all others by Declined.
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

// failedBefore applies the faults that end a request before its effect.
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

// act has the effect and returns the answer that the key returns from then on.
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

// failedAfter applies the faults that replace the answer. An error here is not marked as a replay, even if the
// answer would have been.
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

// honours reports whether the key prevents a second effect.
func (p *SimulatedProvider) honours(entry Entry) bool {
	return entry.Key != "" && !p.IgnoreKeys && entry.Method != http.MethodGet
}

// remembers returns the stored reply of a key, until KeyTTL has passed.
func (p *SimulatedProvider) remembers(key string) (Entry, bool) {
	kept, found := p.Ledger.keptUnder(key)
	forgotten := p.KeyTTL > 0 && p.now().Sub(kept.At) >= p.KeyTTL
	return kept, found && !forgotten
}

func (p *SimulatedProvider) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

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

const effectsPath = "/effects/"

// isLookup reports whether a request is a lookup.
func isLookup(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, effectsPath)
}

// lookup answers GET /effects/{key}: 200 with the receipt of the first effect under the key, or 404 if there is none
// yet.
func (p *SimulatedProvider) lookup(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, effectsPath)
	fault, err := p.Ledger.addLookup(Entry{At: time.Now(), Key: key, Method: r.Method, Path: r.URL.Path}, orHealthy(p.LookupPlan))
	if err != nil {
		unwritten(w)
		return
	}
	if p.failedBefore(w, fault) {
		return
	}
	p.pause(r.Context(), fault, Slow, HangBefore)
	effect, found := p.Ledger.firstEffect(key)
	if !found {
		writeReply(w, http.StatusNotFound, problem(http.StatusNotFound, "No effect under this key"))
		return
	}
	writeReply(w, http.StatusOK, receipt(effect.Path)(effect.ID))
}

// gate stops hanging requests until it is open. Its zero value is closed.
type gate struct {
	built, opened sync.Once
	way           chan struct{} // closed once the gate is open
}

func (g *gate) passage() chan struct{} {
	g.built.Do(func() { g.way = make(chan struct{}) })
	return g.way
}

func (g *gate) open() { g.opened.Do(func() { close(g.passage()) }) }

// Release lets every hanging request continue, and makes later ones not hang. It may be called more than once.
func (p *SimulatedProvider) Release() { p.hanging.open() }

// pause waits if the fault is one of those listed. A client that disconnects does not end a hang, since it would not
// stop a real provider's work. It does end the delay of a slow reply.
func (p *SimulatedProvider) pause(ctx context.Context, fault Fault, among ...Fault) {
	switch {
	case !slices.Contains(among, fault):
	case fault == Slow:
		p.dawdle(ctx)
	default:
		<-p.hanging.passage()
	}
}

func (p *SimulatedProvider) dawdle(ctx context.Context) {
	timer := time.NewTimer(orASecond(p.SlowFor))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// refusal is an answer without an effect.
type refusal struct {
	status int
	title  string
	wish   wish
}

// wish returns the value of a Retry-After; nil for none.
type wish func(now time.Time, wait time.Duration) string

var refusals = map[Fault]refusal{
	Throttle:         {http.StatusTooManyRequests, "Too many requests", nil},
	ThrottleFor:      {http.StatusTooManyRequests, "Too many requests", inSeconds},
	ThrottleUntil:    {http.StatusTooManyRequests, "Too many requests", asDate},
	Unavailable:      {http.StatusServiceUnavailable, "Unavailable", nil},
	UnavailableFor:   {http.StatusServiceUnavailable, "Unavailable", inSeconds},
	UnavailableUntil: {http.StatusServiceUnavailable, "Unavailable", asDate},
	Overloaded:       {529, "Overloaded", nil},
	OverloadedFor:    {529, "Overloaded", inSeconds},
	OverloadedUntil:  {529, "Overloaded", asDate},
	Outstanding:      {http.StatusConflict, "A request is outstanding for this Idempotency-Key", inSeconds},
	Taken:            {http.StatusConflict, "This Idempotency-Key was used with another payload", nil},
	Declined:         {http.StatusUnprocessableEntity, "This will not be done", nil},
	ErrorBefore:      {http.StatusInternalServerError, "Something went wrong", nil},
}

func (p *SimulatedProvider) refuse(w http.ResponseWriter, fault Fault) {
	refusal := refusals[fault]
	if refusal.wish != nil {
		// Both headers come from one clock, since the client compares the date with the other header.
		now := time.Now()
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		w.Header().Set("Retry-After", refusal.wish(now, orASecond(p.RetryAfter)))
	}
	writeReply(w, refusal.status, problem(refusal.status, refusal.title))
}

func inSeconds(_ time.Time, wait time.Duration) string {
	return strconv.Itoa(int(math.Ceil(wait.Seconds())))
}

// asDate rounds up, since a date has no fraction of a second.
func asDate(now time.Time, wait time.Duration) string {
	return now.Add(wait + time.Second - 1).UTC().Format(http.TimeFormat)
}

func orASecond(wait time.Duration) time.Duration {
	if wait == 0 {
		return time.Second
	}
	return wait
}

// drop closes the connection without a reply.
func drop() { panic(http.ErrAbortHandler) }

// writeReply sends an answer. An error is a problem of RFC 9457.
func writeReply(w http.ResponseWriter, status int, reply json.RawMessage) {
	contentType := "application/json"
	if status >= 400 {
		contentType = "application/problem+json"
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(reply) // the client may be gone; the ledger has the effect
}

func receipt(path string) func(id string) json.RawMessage {
	return func(id string) json.RawMessage {
		return encode(struct {
			ID     string `json:"id,omitempty"`
			Object string `json:"object"`
			Path   string `json:"path"`
		}{id, "effect", path})
	}
}

func problem(status int, title string) json.RawMessage {
	return encode(struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
	}{title, status})
}

func encode(reply any) json.RawMessage {
	encoded, err := json.Marshal(reply)
	if err != nil {
		panic(errors.New("dispatchtest: a reply cannot be written as JSON"))
	}
	return encoded
}

// Fault is a way in which a provider fails one request.
type Fault string

const (
	None Fault = "none"
	Slow Fault = "slow" // the answer is late

	// Refusals for now, without an effect: 429, 503 and 529, each without Retry-After, with Retry-After in seconds,
	// and with Retry-After as a date.
	Throttle         Fault = "throttle"
	ThrottleFor      Fault = "throttle_for"
	ThrottleUntil    Fault = "throttle_until"
	Unavailable      Fault = "unavailable"
	UnavailableFor   Fault = "unavailable_for"
	UnavailableUntil Fault = "unavailable_until"
	Overloaded       Fault = "overloaded"
	OverloadedFor    Fault = "overloaded_for"
	OverloadedUntil  Fault = "overloaded_until"

	// Refusals because of the key, without an effect.
	Outstanding Fault = "busy"  // 409 with Retry-After: an earlier request is under way
	Taken       Fault = "taken" // 409, from now on: another client used the key with another body

	// A refusal because of the content, without an effect: 422. See SimulatedProvider.Declines.
	Declined Fault = "declined"

	// The answer is lost or an error, before or after the effect.
	ErrorBefore    Fault = "error_before"    // 500
	ErrorAfter     Fault = "error_after"     // 500, though the effect happened
	DropBefore     Fault = "drop_before"     // closes the connection
	DropAfter      Fault = "drop_after"      // closes the connection after the effect
	MalformedReply Fault = "malformed_reply" // the effect happened; the JSON is cut short

	// A 500 that the key returns again and again, before or after the effect. ErrorForGood also sends
	// Stripe-Should-Retry: false.
	SavedErrorBefore Fault = "saved_error_before"
	SavedErrorAfter  Fault = "saved_error_after"
	ErrorForGood     Fault = "error_for_good" // after the effect

	// These requests wait for Release.
	HangBefore Fault = "hang_before" // has the effect after Release; until then the key is busy
	HangAfter  Fault = "hang_after"  // has the effect, and answers after Release
)

// Faults lists every fault, in the order of the constants, except None, HangBefore and HangAfter.
func Faults() []Fault {
	return []Fault{
		Slow,
		Throttle, ThrottleFor, ThrottleUntil,
		Unavailable, UnavailableFor, UnavailableUntil,
		Overloaded, OverloadedFor, OverloadedUntil,
		Outstanding, Taken, Declined,
		ErrorBefore, ErrorAfter, DropBefore, DropAfter, MalformedReply,
		SavedErrorBefore, SavedErrorAfter, ErrorForGood,
	}
}

// Plan chooses the fault of one request. request counts the requests with the same key, from 1. A plan is called
// concurrently.
type Plan func(key string, request int) Fault

// Healthy makes no faults.
func Healthy() Plan {
	return func(string, int) Fault { return None }
}

// Always chooses the same fault for every request.
func Always(fault Fault) Plan {
	return func(string, int) Fault { return fault }
}

// Script chooses the faults of each key from the list, in order. After the end of the list there are no faults.
func Script(faults ...Fault) Plan {
	return func(_ string, request int) Fault {
		if request > len(faults) {
			return None
		}
		return faults[request-1]
	}
}

// ScriptKeys is a Script for each listed key. Requests with other keys have no faults.
func ScriptKeys(scripts map[string][]Fault) Plan {
	return func(key string, request int) Fault { return Script(scripts[key]...)(key, request) }
}

// Random chooses faults by probability. The choice depends only on the seed, the key and the number of the request,
// not on the order of requests. Random panics if a probability is outside [0, 1] or if their sum is over 1.
func Random(seed uint64, odds map[Fault]float64) Plan {
	faults := make([]Fault, 0, len(odds))
	sum := 0.0
	for fault, probability := range odds {
		if !(probability >= 0 && probability <= 1) {
			panic(fmt.Sprintf("dispatchtest: probability %v of fault %s is outside [0, 1]", probability, fault))
		}
		faults = append(faults, fault)
		sum += probability
	}
	if sum > 1+1e-9 {
		panic(fmt.Sprintf("dispatchtest: the probabilities add up to %v", sum))
	}
	slices.Sort(faults)
	return func(key string, request int) Fault {
		at := fraction(seed, key, request)
		for _, fault := range faults {
			if at -= odds[fault]; at < 0 {
				return fault
			}
		}
		return None
	}
}

// fraction returns a number in [0, 1) that looks random.
func fraction(seed uint64, key string, request int) float64 {
	hash := fnv.New64a()
	var numbers [16]byte
	binary.LittleEndian.PutUint64(numbers[:8], seed)
	binary.LittleEndian.PutUint64(numbers[8:], uint64(request))
	hash.Write(numbers[:])
	hash.Write([]byte(key))
	mixed := hash.Sum64()
	mixed = (mixed ^ mixed>>33) * 0xff51afd7ed558ccd // FNV alone spreads its high bits badly
	mixed ^= mixed >> 33
	return float64(mixed>>11) / math.Exp2(53)
}
