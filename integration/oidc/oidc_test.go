// Package oidc_test tests a login at a real OpenID issuer. It is a separate module, so that the program does not
// depend on the issuer.
package oidc_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"

	"github.com/agentoutbox/drainer/console"
	"github.com/agentoutbox/drainer/drainer/doctor"
)

// people adds the groups of a user to the answer of the userinfo endpoint, and nowhere else.
type people struct{ *storage.Storage }

func (p people) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	err := p.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin)
	if subject == "id1" {
		info.AppendClaims("groups", []string{"staff", "on-call"})
	}
	return err
}

// browser follows redirects and fills in the issuer's login page.
type browser struct {
	t       *testing.T
	console *httptest.Server
	issuer  *httptest.Server
	*http.Client
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	return newBrowserFor(t, "", io.Discard)
}

// newBrowserFor returns a browser for a console. If viewers is set, only people of this group may view the console.
func newBrowserFor(t *testing.T, viewers string, log io.Writer) *browser {
	t.Helper()
	b := &browser{t: t, console: httptest.NewUnstartedServer(nil), issuer: httptest.NewUnstartedServer(nil)}
	at, issuer := "http://"+b.console.Listener.Addr().String(), "http://"+b.issuer.Listener.Addr().String()
	storage.RegisterClients(storage.WebClient(at, "secret", at+"/oidc/callback")) // the process has one list of clients
	b.issuer.Config.Handler = exampleop.SetupServer(issuer, people{storage.NewStorage(storage.NewUserStore(issuer))}, slog.New(slog.DiscardHandler), false)
	access, err := console.OIDC{Issuer: issuer, ClientID: at, Secret: "secret", URL: at, Groups: "groups", Operators: "on-call", Viewers: viewers}.Access(slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	// The doctor's page needs no database here.
	well := func(context.Context) []doctor.Finding { return nil }
	if b.console.Config.Handler, err = console.New(console.Options{Access: access, Doctor: well}); err != nil {
		t.Fatal(err)
	}
	for _, server := range []*httptest.Server{b.console, b.issuer} {
		server.Start()
		t.Cleanup(server.Close)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Client = &http.Client{Jar: jar}
	return b
}

func (b *browser) read(response *http.Response, err error) (int, string, *url.URL) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Request.URL
}

// login starts at the console and logs in at the issuer as the user. tamper may change the console's cookies before
// the browser returns to the console.
func (b *browser) login(user string, tamper func(*http.Cookie)) (int, string) {
	b.t.Helper()
	_, _, asked := b.read(b.Get(b.console.URL + "/login?to=/doctor"))
	if !strings.HasPrefix(asked.String(), b.issuer.URL) {
		b.t.Fatalf("the login leads to %s", asked)
	}
	callback, err := url.Parse(b.console.URL + "/oidc/callback")
	if err != nil {
		b.t.Fatal(err)
	}
	if tamper != nil {
		for _, cookie := range b.Jar.Cookies(callback) {
			tamper(cookie)
			cookie.Path = "/oidc/callback"
			b.Jar.SetCookies(callback, []*http.Cookie{cookie})
		}
	}
	code, text, _ := b.read(b.PostForm(b.issuer.URL+"/login/username", url.Values{
		"id": {asked.Query().Get("authRequestID")}, "username": {user}, "password": {"verysecure"},
	}))
	return code, text
}

func TestAGroupOfTheIssuerMakesAnOperator(t *testing.T) {
	for user, role := range map[string]string{"test-user@127.0.0.1": "operator", "test-user2": "viewer"} {
		b := newBrowser(t)
		if code, text, _ := b.read(b.Get(b.console.URL + "/doctor")); code != http.StatusUnauthorized || !strings.Contains(text, "Log in at") {
			t.Errorf("a stranger: %d\n%s", code, text)
		}
		code, text := b.login(user, nil)
		if code != http.StatusOK || !strings.Contains(text, user+", "+role) {
			t.Errorf("%s is no %s: %d\n%s", user, role, code, text)
		}
		b.read(b.PostForm(b.console.URL+"/logout", nil))
		if code, _, _ := b.read(b.Get(b.console.URL + "/doctor")); code != http.StatusUnauthorized {
			t.Errorf("after logging out: %d", code)
		}
	}
}

func TestAPersonInNoGroupIsRefused(t *testing.T) {
	for user, want := range map[string]int{"test-user@127.0.0.1": http.StatusOK, "test-user2": http.StatusForbidden} {
		b := newBrowserFor(t, "staff", io.Discard)
		if code, text := b.login(user, nil); code != want || strings.Contains(text, "in no group") != (want == http.StatusForbidden) {
			t.Errorf("%s: %d\n%s", user, code, text)
		}
		if code, _, _ := b.read(b.Get(b.console.URL + "/doctor")); (code == http.StatusOK) != (want == http.StatusOK) {
			t.Errorf("%s then reads with %d", user, code)
		}
	}
}

func TestFailedLoginsAreLogged(t *testing.T) {
	var log strings.Builder // the handler locks it
	b := newBrowserFor(t, "", &log)
	for range 30 {
		if code, _, _ := b.read(b.Get(b.console.URL + "/oidc/callback?state=guess&code=stolen")); code != http.StatusUnauthorized {
			t.Errorf("a guess: %d, want 401", code)
		}
	}
	b.console.Close() // no handler writes to the log any more
	lines := strings.Count(log.String(), "a login was refused")
	if lines < 5 || lines > 20 || !strings.Contains(log.String(), "mode=oidc address=127.0.0.1 error=") || strings.Contains(log.String(), "stolen") {
		t.Errorf("logged %s", log.String())
	}
}

// Behind an ingress, strangers and a person have the same address. A limit for strangers must not keep the person
// out.
func TestStrangersKeepNoPersonOutAndAskTheIssuerSeldom(t *testing.T) {
	b := newBrowser(t)
	callback := func(cookie string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.console.URL+"/oidc/callback?state=forged&code=guess", nil)
		if err != nil {
			t.Error(err)
			return
		}
		request.Header.Set("Cookie", cookie)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("a stranger with the cookie %q: %d, want 401", cookie, answer.StatusCode)
		}
	}
	for range 30 {
		callback("")
	}
	begun := time.Now()
	var forgers sync.WaitGroup
	for range 16 { // their cookies have the state that they send
		forgers.Go(func() { callback("drainer_login=forged.nonce.verifier.Lw") })
	}
	if code, text := b.login("test-user2", nil); code != http.StatusOK || !strings.Contains(text, "test-user2, viewer") {
		t.Errorf("a person: %d\n%s", code, text)
	}
	forgers.Wait()
	if took := time.Since(begun); took < time.Second {
		t.Errorf("the issuer was asked 16 times in %s, want 8 times a second", took)
	}
}

func TestALoginIsTheBrowsersThatBeganIt(t *testing.T) {
	for part, name := range []string{"state", "nonce", "verifier"} {
		b := newBrowser(t)
		code, text := b.login("test-user2", func(cookie *http.Cookie) {
			parts := strings.Split(cookie.Value, ".")
			parts[part] = strings.Repeat("x", len(parts[part]))
			cookie.Value = strings.Join(parts, ".")
		})
		if code != http.StatusUnauthorized {
			t.Errorf("with the %s of another login: %d\n%s", name, code, text)
		}
		if code, _, _ := b.read(b.Get(b.console.URL + "/doctor")); code != http.StatusUnauthorized {
			t.Errorf("with the %s of another login there is a session", name)
		}
	}
}

func TestALoginLeadsNowhereElse(t *testing.T) {
	b := newBrowser(t)
	for _, to := range []string{"//evil.example", "https://evil.example/", "/\\evil.example", "/x/../\\evil.example", "/\t/evil.example"} {
		response, err := b.Get(b.console.URL + "/login?to=" + url.QueryEscape(to))
		_, _, asked := b.read(response, err)
		b.CheckRedirect = func(next *http.Request, _ []*http.Request) error {
			if b.console.URL != "http://"+next.URL.Host || next.URL.Path == "/oidc/callback" {
				return nil
			}
			return http.ErrUseLastResponse
		}
		response, err = b.PostForm(b.issuer.URL+"/login/username", url.Values{
			"id": {asked.Query().Get("authRequestID")}, "username": {"test-user2"}, "password": {"verysecure"},
		})
		code, text, _ := b.read(response, err)
		if leads := response.Header.Get("Location"); code != http.StatusSeeOther || leads != "/" {
			t.Errorf("to %q: %d to %q\n%s", to, code, leads, text)
		}
		b.CheckRedirect = nil
	}
}
