package drainer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// closing is an adapter that ends in its own way.
type closing struct {
	dispatch.Adapter
	close func() error
}

func (c closing) Close() error { return c.close() }

func TestAnAdapterThatCannotBeClosedHoldsNobodyUpAndIsNotQuoted(t *testing.T) {
	const secret = "postgres://user:canary@db"
	for name, test := range map[string]struct {
		close func() error
		takes time.Duration
		want  string
	}{
		"in order":  {func() error { return nil }, 0, ""},
		"it fails":  {func() error { return errors.New(secret) }, 0, `msg="the adapter could not be closed in order" provider=sim error_type=*errors.errorString`},
		"it panics": {func() error { panic(secret) }, 0, `msg="adapter panicked while it was closed" provider=sim panic_type=string`},
		"it hangs":  {func() error { time.Sleep(time.Hour); return nil }, settleGrace, `msg="closing the adapters takes long; going on without waiting for it"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, said := observing()
				began := time.Now()
				closeAdapters([]Provider{{Name: "sim", Adapter: closing{close: test.close}}, {Name: "bare"}}, func(string) bool { return false }, o.log)
				if took := time.Since(began); took != test.takes {
					t.Errorf("it took %s, want %s", took, test.takes)
				}
				if !strings.Contains(said.String(), test.want) || (test.want == "" && said.Len() > 0) {
					t.Errorf("it says %q, want %q", said, test.want)
				}
				if strings.Contains(said.String(), "canary") {
					t.Errorf("it repeats the adapter's own words: %q", said)
				}
				time.Sleep(2 * time.Hour) // whatever hung has ended
			})
		})
	}
}
