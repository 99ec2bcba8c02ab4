package dispatchtest_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

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
