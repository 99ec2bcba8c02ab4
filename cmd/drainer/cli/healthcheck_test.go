package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAHealthcheckAsksTheDaemonOfThisMachine(t *testing.T) {
	t.Parallel()
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("the database is away\n"))
		}
	}))
	defer daemon.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(daemon.URL, "http://"), ":")
	for name, test := range map[string]struct {
		listen string
		flags  []string
		code   int
		says   string
	}{
		"alive":                     {"127.0.0.1:" + port, nil, exitOK, ""},
		"listening everywhere":      {":" + port, nil, exitOK, ""},
		"listening on every IPv6":   {"[::]:" + port, nil, exitOK, ""},
		"not ready":                 {"127.0.0.1:" + port, []string{"--ready"}, exitFailed, "/readyz: HTTP 503: the database is away"},
		"no daemon at that address": {strings.TrimPrefix(gone.URL, "http://"), nil, exitFailed, "no daemon answers"},
	} {
		file := write(t, "drainer.yaml", strings.Replace(strings.ReplaceAll(validConfig, "TOKEN", "/nowhere"), ":9464", test.listen, 1))
		got := run(t, append([]string{"healthcheck", "--config", file}, test.flags...)...)
		if got.code != test.code || !strings.Contains(got.stderr, test.says) {
			t.Errorf("%s: %d, %s", name, got.code, got.stderr)
		}
	}
}
