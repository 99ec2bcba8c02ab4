package nemesis_test

import (
	"net/url"
	"strings"
	"sync"
	"testing"
)

// What nobody is to read in any output.
const (
	canary        = "canary-9f41c7"
	providerToken = canary + "-token"
	pagerSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

// credentials are what the configuration wants of the environment.
var credentials = []string{"PROVIDER_TOKEN=" + providerToken, "PAGER_SECRET=" + pagerSecret}

// watch looks for secrets in all that the daemons say.
type watch struct {
	secrets map[string]string // by what they are

	mu    sync.Mutex
	leaks map[string]string // what leaked, by place
}

func newWatch(t testing.TB, databaseURL string) *watch {
	t.Helper()
	parsed, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := parsed.User.Password()
	return &watch{
		secrets: map[string]string{
			"a payload or a credential": canary,
			"the pager's secret":        strings.TrimPrefix(pagerSecret, "whsec_"),
			"the database's password":   password,
		},
		leaks: map[string]string{},
	}
}

// read looks at some text of that place.
func (w *watch) read(place, text string) {
	for name, secret := range w.secrets {
		if strings.Contains(text, secret) {
			w.mu.Lock()
			w.leaks[place] = name
			w.mu.Unlock()
		}
	}
}

func (w *watch) assertSilence(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for place, secret := range w.leaks {
		t.Errorf("%s shows %s", place, secret)
	}
}
