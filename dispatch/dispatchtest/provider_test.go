package dispatchtest_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
		t.Errorf("replay: %+v, want the octets of %+v", second, first)
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
		if fault == dispatchtest.HangAfter { // it holds the key by now
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
