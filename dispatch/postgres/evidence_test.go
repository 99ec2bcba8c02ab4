package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// keyMark stands in every statement that carries an intent.
const keyMark = "idem_v1_"

const completing = "BEGIN " + deed + ` RETURN '{"outcome":"completed"}'; END`

func TestWithoutAConnectionNothingIsSent(t *testing.T) {
	t.Parallel()
	to := newRecipient(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	elsewhere := func(host string) string { return changed(t, to.url, func(u *url.URL) { u.Host = host }) }
	for name, test := range map[string]struct{ url, class string }{
		"no listener":      {elsewhere(closed), "dial"},
		"no such host":     {elsewhere("db.invalid"), "dns"},
		"no answer":        {elsewhere(mute.Addr().String()), "timeout"},
		"no such user":     {changed(t, to.url, func(u *url.URL) { u.User = url.User("nobody") }), "auth"},
		"no such database": {changed(t, to.url, func(u *url.URL) { u.Path = "/none" }), "sqlstate_3d000"},
		"no TLS there":     {strings.ReplaceAll(to.url, "sslmode=disable", "sslmode=verify-full"), "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(test.url, intoInbox)
			if test.class == "timeout" {
				s.Timeout = 300 * time.Millisecond
			}
			want := dispatch.NotSent
			if test.class == "auth" {
				want = dispatch.CredentialsRefused
			}
			expect(t, newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`)), want, test.class)
		})
	}
	t.Run("forbidden", func(t *testing.T) {
		s := spec(elsewhere("db.example.com:5432"), intoInbox)
		asked := ""
		s.Network = dispatch.NewNetwork(func(_ context.Context, _, address string) (net.Conn, error) {
			asked = address
			return nil, dispatch.ErrEgressRefused
		}, nil)
		expect(t, newAdapter(t, s).Dispatch(t.Context(), request("step-1", `{}`)), dispatch.NotSent, "egress_refused")
		if asked != "db.example.com:5432" {
			t.Errorf("the dialer was asked for %q: the name is its to resolve", asked)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect(t, newAdapter(t, spec(to.url, intoInbox)).Dispatch(ctx, request("step-1", `{}`)), dispatch.NotSent, "cancelled")
	})
	if rows := to.count("inbox.message"); rows != 0 {
		t.Errorf("%d rows", rows)
	}
}

// TestALostAnswerIsInDoubtOnlyFromTheCommitOn cuts a working connection at
// what a statement carries.
func TestALostAnswerIsInDoubtOnlyFromTheCommitOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool    string
		on      func(*session, []byte) bool
		outcome dispatch.Outcome
		class   string
		effects int
	}{
		"insert, its answer lost":      {intoInbox, hangUpAfter(keyMark), dispatch.Ambiguous, "reset", 1},
		"insert, itself lost":          {intoInbox, hangUpBefore(keyMark), dispatch.Ambiguous, "reset", 0},
		"insert, no answer":            {intoInbox, swallow(keyMark), dispatch.Ambiguous, "timeout", 1},
		"insert, babble":               {intoInbox, babble(keyMark), dispatch.Ambiguous, "protocol", -1},
		"call, its answer lost":        {callFunction, hangUpAfter(keyMark), dispatch.Throttled, "reset", 0},
		"call, itself lost":            {callFunction, hangUpBefore(keyMark), dispatch.Throttled, "reset", 0},
		"call, no answer":              {callFunction, swallow(keyMark), dispatch.Throttled, "timeout", 0},
		"call, babble":                 {callFunction, babble(keyMark), dispatch.Throttled, "protocol", 0},
		"begin, itself lost":           {callFunction, hangUpBefore("begin"), dispatch.NotSent, "reset", 0},
		"commit, its answer lost":      {callFunction, hangUpAfter("commit"), dispatch.Ambiguous, "reset", 1},
		"commit, itself lost":          {callFunction, hangUpBefore("commit"), dispatch.Ambiguous, "reset", 0},
		"commit, no answer":            {callFunction, swallow("commit"), dispatch.Ambiguous, "timeout", 1},
		"commit, babble":               {callFunction, babble("commit"), dispatch.Ambiguous, "reset", -1},
		"function waits for its reply": {callFunction, nil, dispatch.Completed, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := newRecipient(t)
			to.function(completing)
			through := newProxy(t, to.url)
			s := spec(through.url, test.tool)
			if test.class == "timeout" {
				s.Timeout = time.Second
			}
			adapter := newAdapter(t, s)
			expect(t, adapter.Dispatch(t.Context(), request("warm", `{}`)), dispatch.Completed, "")
			through.intercept(test.on)
			expect(t, adapter.Dispatch(t.Context(), request("step-1", `{}`)), test.outcome, test.class)
			through.intercept(nil)
			to.awaitIdle()
			if effects := to.count("inbox.message") + to.count("shop.deed") - 1; test.effects >= 0 && effects != test.effects {
				t.Errorf("%d effects, want %d", effects, test.effects)
			}
			expect(t, adapter.Dispatch(t.Context(), request("step-2", `{}`)), dispatch.Completed, "")
		})
	}
}

// TestNoOutcomeContradictsTheDatabase cuts connections after any number of
// bytes, and compares what the adapter said with what is there.
func TestNoOutcomeContradictsTheDatabase(t *testing.T) {
	t.Parallel()
	const inInbox, inShop = "SELECT step_id FROM inbox.message", "SELECT payload->>'step' FROM shop.deed"
	for _, test := range []struct{ tool, effects, mode string }{
		{intoInbox, inInbox, "cache_statement"},
		{intoInbox, inInbox, "exec"},
		{intoInbox, inInbox, "simple_protocol"},
		{callFunction, inShop, "cache_statement"},
		{callFunction, inShop, "simple_protocol"},
	} {
		t.Run(test.tool+", "+test.mode, func(t *testing.T) {
			t.Parallel()
			tool, effects := test.tool, test.effects
			to := newRecipient(t)
			to.function(completing)
			through := newProxy(t, with(to.url, "default_query_exec_mode="+test.mode))
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			through.limited(func() int64 { return 1 + random.Int64N(4000) })
			adapters := []dispatch.Adapter{newAdapter(t, spec(through.url, tool)), newAdapter(t, spec(through.url, tool))}

			const intents, workers = 160, 8
			results := make([]dispatch.Result, intents)
			var all sync.WaitGroup
			for worker := range workers {
				all.Go(func() {
					for i := worker; i < intents; i += workers {
						step := fmt.Sprint("step-", i)
						results[i] = adapters[worker%2].Dispatch(t.Context(), request(step, `{"step":"`+step+`"}`))
					}
				})
			}
			all.Wait()
			to.awaitIdle()
			times := to.times(effects)
			seen := map[dispatch.Outcome]int{}
			for i, got := range results {
				seen[got.Outcome]++
				n := times[fmt.Sprint("step-", i)]
				if n > 1 || (got.Outcome == dispatch.Completed) != (n == 1) && got.Outcome != dispatch.Ambiguous {
					t.Errorf("%s %q, and its effect is there %d times", got.Outcome, got.ErrorClass, n)
				}
			}
			t.Log(seen)
			for _, outcome := range []dispatch.Outcome{dispatch.Completed, dispatch.NotSent} {
				if seen[outcome] == 0 {
					t.Errorf("nothing was %s: the cuts prove nothing", outcome)
				}
			}
			if seen[dispatch.Ambiguous]+seen[dispatch.Throttled] == 0 {
				t.Error("nothing was cut in the middle: the cuts prove nothing")
			}
		})
	}
}

func TestAnUnknownOperationIsNotSent(t *testing.T) {
	t.Parallel()
	adapter := newAdapter(t, spec("postgres://u@db.invalid/x", intoInbox))
	got := adapter.Dispatch(t.Context(), dispatch.Request{Tuple: dispatch.Tuple{ToolName: "shop/none"}})
	expect(t, got, dispatch.NotSent, "unconfigured_tool")
}
