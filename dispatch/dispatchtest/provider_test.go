package dispatchtest_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func post(t *testing.T, baseURL, key, body string) reply {
	t.Helper()
	return send(t, http.MethodPost, baseURL+"/v1/charges", key, body)
}

func send(t *testing.T, method, url, key, body string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return reply{}
	}
	request.GetBody = nil // else the client sends again after a drop
	request.Close = true
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text), err}
}

func TestAReplayIsTheStoredReply(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, nil)
	first, second := post(t, baseURL, "k", "{}"), post(t, baseURL, `"k"`, "{}")
	if first.status != 200 || first.body == "" || first.header.Get("Idempotency-Replay") != "" {
		t.Errorf("first reply: %+v", first)
	}
	if second.body != first.body || second.header.Get("Idempotency-Replay") != "true" {
		t.Errorf("replay: %+v, want the bytes of %+v", second, first)
	}
	other := post(t, baseURL, "k", `{"other":1}`)
	if other.status != 409 || other.header.Get("Retry-After") != "" {
		t.Errorf("another payload: %+v, want 409 for good", other)
	}
	audit := provider.Ledger.Audit()
	if audit.Effects["k"] != 1 || audit.Requests["k"] != 3 || audit.DuplicateEffects() != 0 {
		t.Errorf("%+v, want one effect of three requests", audit)
	}
}

func TestAKeyInUseIsInFlight(t *testing.T) {
	t.Parallel()
	for _, fault := range []dispatchtest.Fault{dispatchtest.HangBefore, dispatchtest.HangAfter} {
		provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(fault))
		var first reply
		var group sync.WaitGroup
		group.Go(func() { first = post(t, baseURL, "k", "{}") })
		if err := provider.Ledger.Wait(t.Context(), func(a dispatchtest.Audit) bool {
			return a.TotalRequests() == 1 && (fault == dispatchtest.HangBefore || a.TotalEffects() == 1)
		}); err != nil {
			t.Fatal(err)
		}
		if fault == dispatchtest.HangAfter { // the first request holds the key by now
			if second := post(t, baseURL, "k", "{}"); second.status != 409 || second.header.Get("Retry-After") == "" {
				t.Errorf("%s: %+v, want 409 with Retry-After", fault, second)
			}
		}
		provider.Release()
		group.Wait()
		if first.status != 200 || provider.Ledger.Audit().Effects["k"] != 1 {
			t.Errorf("%s: %+v", fault, first)
		}
	}
}

func TestEveryFaultFailsItsOwnWay(t *testing.T) {
	t.Parallel()
	type evidence struct {
		status, effects   int // status 0: no reply at all
		retried, inTheEnd int
	}
	wants := map[dispatchtest.Fault]evidence{
		dispatchtest.Slow:             {200, 1, 200, 1},
		dispatchtest.Throttle:         {429, 0, 200, 1},
		dispatchtest.ThrottleFor:      {429, 0, 200, 1},
		dispatchtest.ThrottleUntil:    {429, 0, 200, 1},
		dispatchtest.Unavailable:      {503, 0, 200, 1},
		dispatchtest.UnavailableFor:   {503, 0, 200, 1},
		dispatchtest.UnavailableUntil: {503, 0, 200, 1},
		dispatchtest.Overloaded:       {529, 0, 200, 1},
		dispatchtest.OverloadedFor:    {529, 0, 200, 1},
		dispatchtest.OverloadedUntil:  {529, 0, 200, 1},
		dispatchtest.Outstanding:      {409, 0, 200, 1},
		dispatchtest.Taken:            {409, 0, 409, 0},
		dispatchtest.Declined:         {422, 0, 200, 1},
		dispatchtest.ErrorBefore:      {500, 0, 200, 1},
		dispatchtest.ErrorAfter:       {500, 1, 200, 1},
		dispatchtest.DropBefore:       {0, 0, 200, 1},
		dispatchtest.DropAfter:        {0, 1, 200, 1},
		dispatchtest.MalformedReply:   {200, 1, 200, 1},
		dispatchtest.SavedErrorBefore: {500, 0, 500, 0},
		dispatchtest.SavedErrorAfter:  {500, 1, 500, 1},
		dispatchtest.ErrorForGood:     {500, 1, 500, 1},
	}
	for _, fault := range dispatchtest.Faults() {
		want := wants[fault]
		provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Script(fault), SlowFor: time.Millisecond}
		baseURL := dispatchtest.Serve(t, provider)
		got := post(t, baseURL, "k", "{}")
		if got.status != want.status || (got.err != nil) != (want.status == 0) {
			t.Errorf("%s: %+v, want status %d", fault, got, want.status)
		}
		if effects := provider.Ledger.Audit().Effects["k"]; effects != want.effects {
			t.Errorf("%s: %d effects, want %d", fault, effects, want.effects)
		}
		if retry := post(t, baseURL, "k", "{}"); retry.status != want.retried {
			t.Errorf("%s: the retry ended %+v, want status %d", fault, retry, want.retried)
		}
		if effects := provider.Ledger.Audit().Effects["k"]; effects != want.inTheEnd {
			t.Errorf("%s: %d effects after the retry", fault, effects)
		}
	}
}

func TestWhatIsDeclinedHasNoEffectWhateverItMeets(t *testing.T) {
	t.Parallel()
	for _, fault := range append(dispatchtest.Faults(), dispatchtest.HangBefore, dispatchtest.HangAfter) {
		provider := &dispatchtest.SimulatedProvider{
			Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Script(fault),
			Declines: func(path string) bool { return path == "/v1/charges" },
		}
		baseURL := dispatchtest.Serve(t, provider)
		post(t, baseURL, "k", "{}")
		if again := post(t, baseURL, "k", "{}"); again.status < 400 || again.status > 499 {
			t.Errorf("%s: the second request ended %+v, want a refusal", fault, again)
		}
		if effects := provider.Ledger.Audit().TotalEffects(); effects != 0 {
			t.Errorf("%s: %d effects of what is declined", fault, effects)
		}
	}
}

func TestTheLedgerListsEffectsInTheirOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	ledger, err := dispatchtest.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	baseURL := dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger})
	for _, key := range []string{"b", "a", "b", "c"} {
		post(t, baseURL, key, "{}")
	}
	read, err := dispatchtest.ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, ledger := range map[string]*dispatchtest.Ledger{"written": ledger, "read": read} {
		var keys []string
		for _, effect := range ledger.Effects() {
			keys = append(keys, effect.Key)
		}
		if want := []string{"b", "a", "c"}; !slices.Equal(keys, want) {
			t.Errorf("%s: effects of %v, want %v", name, keys, want)
		}
	}
}

func TestAProviderThatIgnoresKeysDuplicates(t *testing.T) {
	t.Parallel()
	ledger := dispatchtest.NewLedger()
	baseURL := dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger, IgnoreKeys: true})
	post(t, baseURL, "k", "{}")
	post(t, baseURL, "k", "{}")
	if got := ledger.Audit().DuplicateEffects(); got != 1 {
		t.Errorf("%d duplicates, want 1", got)
	}
}

func TestALedgerSurvivesItsProvider(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.jsonl")
	ledger, err := dispatchtest.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	first := post(t, dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger}), "k", "{}")
	if err := ledger.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"kind":"eff`); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()

	ledger, err = dispatchtest.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	second := post(t, dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger}), "k", "{}")
	if second.body != first.body || second.header.Get("Idempotency-Replay") != "true" {
		t.Errorf("after a restart: %+v, want a replay of %+v", second, first)
	}
	read, err := dispatchtest.ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	if audit := read.Audit(); audit.TotalEffects() != 1 || audit.TotalRequests() != 2 {
		t.Errorf("the file holds %+v", audit)
	}
}

func TestRandomFaultsAreTheSeedsOwn(t *testing.T) {
	t.Parallel()
	odds := map[dispatchtest.Fault]float64{dispatchtest.Throttle: 0.2, dispatchtest.DropAfter: 0.1}
	once, again, other := dispatchtest.Random(1, odds), dispatchtest.Random(1, odds), dispatchtest.Random(2, odds)
	counts, differing := map[dispatchtest.Fault]int{}, 0
	for i := range 10_000 {
		key := string(rune('a'+i%26)) + strings.Repeat("x", i/1000)
		fault := once(key, i)
		counts[fault]++
		if fault != again(key, i) {
			t.Fatal("one seed gave two answers")
		}
		if fault != other(key, i) {
			differing++
		}
	}
	if n := counts[dispatchtest.Throttle]; n < 1800 || n > 2200 {
		t.Errorf("%d of 10000 throttled, want about 2000", n)
	}
	if n := counts[dispatchtest.DropAfter]; n < 850 || n > 1150 {
		t.Errorf("%d of 10000 dropped, want about 1000", n)
	}
	if differing == 0 {
		t.Error("two seeds gave the same faults")
	}
}

func TestAKeyIsForgottenAfterItsTime(t *testing.T) {
	t.Parallel()
	var now atomic.Pointer[time.Time]
	set := func(at time.Time) { now.Store(&at) }
	start := time.Now()
	set(start)
	provider := &dispatchtest.SimulatedProvider{
		Ledger: dispatchtest.NewLedger(), KeyTTL: time.Hour, Now: func() time.Time { return *now.Load() },
	}
	baseURL := dispatchtest.Serve(t, provider)
	for _, step := range []struct {
		at      time.Duration
		replay  string
		effects int
	}{
		{0, "", 1},
		{time.Hour - 1, "true", 1},
		{time.Hour, "", 2},
		{2*time.Hour - 1, "true", 2}, // the key is remembered again, since the second effect
		{2 * time.Hour, "", 3},
	} {
		set(start.Add(step.at))
		got := post(t, baseURL, "k", "{}").header.Get("Idempotency-Replay")
		if effects := provider.Ledger.Audit().Effects["k"]; got != step.replay || effects != step.effects {
			t.Errorf("after %s: replay %q and %d effects, want %q and %d", step.at, got, effects, step.replay, step.effects)
		}
	}
}

func TestASavedErrorIsReplayedEvenByARestartedProvider(t *testing.T) {
	t.Parallel()
	for fault, effects := range map[dispatchtest.Fault]int{
		dispatchtest.SavedErrorBefore: 0, dispatchtest.SavedErrorAfter: 1, dispatchtest.ErrorForGood: 1,
	} {
		path := filepath.Join(t.TempDir(), "ledger.jsonl")
		first := post(t, serveLedger(t, path, dispatchtest.Script(fault)), "k", "{}")
		if first.status != 500 || first.header.Get("Idempotency-Replay") != "" {
			t.Errorf("%s: first %+v", fault, first)
		}
		if final := first.header.Get("Stripe-Should-Retry"); (final == "false") != (fault == dispatchtest.ErrorForGood) {
			t.Errorf("%s: Stripe-Should-Retry is %q", fault, final)
		}
		again := post(t, serveLedger(t, path, nil), "k", "{}")
		if again.status != 500 || again.body != first.body || again.header.Get("Idempotency-Replay") != "true" {
			t.Errorf("%s: again %+v, want a replay of %+v", fault, again, first)
		}
		ledger, err := dispatchtest.ReadLedger(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := ledger.Audit().Effects["k"]; got != effects {
			t.Errorf("%s: %d effects, want %d", fault, got, effects)
		}
	}
}

func serveLedger(t *testing.T, path string, plan dispatchtest.Plan) string {
	t.Helper()
	ledger, err := dispatchtest.OpenLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	return dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: plan})
}

func TestAnErrorInPlaceOfAReplayIsNone(t *testing.T) {
	t.Parallel()
	_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.None, dispatchtest.ErrorAfter))
	for i, want := range []struct {
		status int
		replay string
	}{{200, ""}, {500, ""}, {200, "true"}} {
		got := post(t, baseURL, "k", "{}")
		if replay := got.header.Get("Idempotency-Replay"); got.status != want.status || replay != want.replay {
			t.Errorf("request %d: status %d, replay %q, want %+v", i+1, got.status, replay, want)
		}
	}
}

func TestWhatIsSetAlreadyHasNoEffectAgainAndReadingHasNone(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{Ledger: dispatchtest.NewLedger(), IgnoreKeys: true}
	baseURL := dispatchtest.Serve(t, provider)
	for _, step := range []struct {
		method, body string
		effects      int
	}{
		{http.MethodGet, "", 0},
		{http.MethodPut, "on", 1},
		{http.MethodPut, "on", 1},
		{http.MethodGet, "", 1},
		{http.MethodPut, "off", 2},
	} {
		got := send(t, step.method, baseURL+"/v1/lamp", "k", step.body)
		if effects := provider.Ledger.Audit().Effects["k"]; got.status != 200 || effects != step.effects {
			t.Errorf("%s %s: %+v and %d effects, want %d", step.method, strings.TrimSpace(step.body), got, effects, step.effects)
		}
	}
}

func TestWhoIgnoresKeysSavesNoErrorUnderThem(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
		baseURL := dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{
			Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Script(dispatchtest.SavedErrorAfter), IgnoreKeys: true,
		})
		for i, want := range []int{500, 200} {
			if got := send(t, method, baseURL+"/v1/lamp", "k", ""); got.status != want {
				t.Errorf("%s %d: %+v, want status %d", method, i+1, got, want)
			}
		}
	}
}

func lookUp(t *testing.T, baseURL, key string) reply {
	t.Helper()
	return send(t, http.MethodGet, baseURL+"/effects/"+key, "", "")
}

func TestALookupTellsWhetherTheKeyHadItsEffect(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.ScriptKeys(map[string][]dispatchtest.Fault{
		"after": {dispatchtest.DropAfter}, "before": {dispatchtest.DropBefore}, "saved": {dispatchtest.SavedErrorAfter}, "taken": {dispatchtest.Taken},
	}))
	for key, found := range map[string]bool{"after": true, "before": false, "saved": true, "taken": false, "never": false} {
		if key != "never" {
			post(t, baseURL, key, "{}")
		}
		got := lookUp(t, baseURL, key)
		if found && (got.status != 200 || !strings.Contains(got.body, `"id":"eff_`)) {
			t.Errorf("%s: %+v, want its effect", key, got)
		}
		if !found && (got.status != 404 || got.header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %+v, want a problem with status 404", key, got)
		}
		if audit := provider.Ledger.Audit(); audit.Lookups[key] != 1 || audit.Requests[key] > 1 {
			t.Errorf("%s: the lookup is not counted as one: %+v", key, audit)
		}
	}
}

func TestAnEffectUnderWayIsNotFoundUntilItHappened(t *testing.T) {
	t.Parallel()
	provider, baseURL := dispatchtest.NewProvider(t, dispatchtest.Script(dispatchtest.HangBefore))
	var group sync.WaitGroup
	group.Go(func() { post(t, baseURL, "k", "{}") })
	if err := provider.Ledger.Wait(t.Context(), func(a dispatchtest.Audit) bool { return a.Requests["k"] == 1 }); err != nil {
		t.Fatal(err)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 404 {
		t.Errorf("under way: %+v, want 404", got)
	}
	provider.Release()
	group.Wait()
	if got := lookUp(t, baseURL, "k"); got.status != 200 {
		t.Errorf("after it happened: %+v, want 200", got)
	}
}

func TestALookupFailsByAPlanOfItsOwn(t *testing.T) {
	t.Parallel()
	provider := &dispatchtest.SimulatedProvider{
		Ledger: dispatchtest.NewLedger(), LookupPlan: dispatchtest.Script(dispatchtest.ErrorBefore, dispatchtest.DropBefore),
	}
	baseURL := dispatchtest.Serve(t, provider)
	if got := post(t, baseURL, "k", "{}"); got.status != 200 {
		t.Errorf("the request itself: %+v", got)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 500 {
		t.Errorf("first lookup: %+v, want 500", got)
	}
	if got := lookUp(t, baseURL, "k"); got.err == nil {
		t.Errorf("second lookup: %+v, want no reply", got)
	}
	if got := lookUp(t, baseURL, "k"); got.status != 200 {
		t.Errorf("third lookup: %+v, want 200", got)
	}
}

func TestARetryAfterIsNeverShorterThanAskedFor(t *testing.T) {
	t.Parallel()
	const wait = 1200 * time.Millisecond
	for fault, read := range map[dispatchtest.Fault]func(http.Header) time.Duration{
		dispatchtest.OverloadedFor: func(header http.Header) time.Duration {
			seconds, _ := strconv.Atoi(header.Get("Retry-After"))
			return time.Duration(seconds) * time.Second
		},
		dispatchtest.OverloadedUntil: func(header http.Header) time.Duration {
			until, _ := http.ParseTime(header.Get("Retry-After"))
			from, _ := http.ParseTime(header.Get("Date"))
			return until.Sub(from)
		},
	} {
		baseURL := dispatchtest.Serve(t, &dispatchtest.SimulatedProvider{
			Ledger: dispatchtest.NewLedger(), Plan: dispatchtest.Always(fault), RetryAfter: wait,
		})
		if got := read(post(t, baseURL, "k", "{}").header); got < wait || got > wait+2*time.Second {
			t.Errorf("%s asks for %s, want %s in whole seconds", fault, got, wait)
		}
	}
}

func TestARefusalWithoutAWishHasNoRetryAfter(t *testing.T) {
	t.Parallel()
	for _, fault := range []dispatchtest.Fault{dispatchtest.Throttle, dispatchtest.Unavailable, dispatchtest.Overloaded, dispatchtest.Taken} {
		_, baseURL := dispatchtest.NewProvider(t, dispatchtest.Always(fault))
		if got := post(t, baseURL, "k", "{}"); got.header.Get("Retry-After") != "" {
			t.Errorf("%s: %+v", fault, got)
		}
	}
}

func TestTheSameJSONMayBeWrittenInManyWays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		one, other string
		want       bool
	}{
		{`{"a":1, "b":[true,null]}`, ` { "b" : [true, null], "a": 1 } `, true},
		{`{"a":1,"a":2}`, `{"a":2}`, true},
		{`{"a":1,"a":2}`, `{"a":1}`, false},
		{`"\u00e9\/"`, `"é/"`, true},
		{`9007199254740993`, `9007199254740992`, false},
		{`1e400`, `10E+399`, true},
		{`1e99999999999999999999`, `10e99999999999999999998`, true},
		{`-0.10`, `-1e-1`, true},
		{`-0`, `0.00e7`, true},
		{`1`, `-1`, false},
		{`1`, `"1"`, false},
		{`100`, `1`, false},
		{`{}`, `[]`, false},
		{`[1]`, `[1,1]`, false},
		{`{"a":null}`, `{}`, false},
		{`{`, `{`, false},
		{`1 2`, `1`, false},
	} {
		if got := dispatchtest.SameJSON([]byte(test.one), []byte(test.other)); got != test.want {
			t.Errorf("%s and %s: %t", test.one, test.other, got)
		}
	}
}
