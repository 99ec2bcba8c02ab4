package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// OIDC lets people log in at an OpenID Connect issuer.
type OIDC struct {
	Issuer    string // its URL
	ClientID  string
	Secret    string // of the client; empty for a public client
	URL       string // of the console, as browsers see it; the issuer sends people to its path /oidc/callback
	Groups    string // the claim that lists a person's groups
	Operators string // the group whose members are operators
	Viewers   string // the group whose members may read; empty: every person may
}

const (
	callbackPath = "/oidc/callback"
	loginCookie  = "drainer_login"
	loginLength  = 10 * time.Minute
	// issuerTimeout bounds each request to the issuer.
	issuerTimeout = 10 * time.Second
	// mostAsking logins ask the issuer at the same time; others wait. A failed login keeps its place for
	// failureKept, so that strangers do not use up the issuer's rate limit. No login is refused by its address,
	// because all people behind an ingress have one address.
	mostAsking  = 8
	failureKept = time.Second
)

// Access checks the settings. It does not ask the issuer: the first login does. So a console that starts while the
// issuer is away accepts logins once the issuer is back.
func (o OIDC) Access(log *slog.Logger) (Access, error) {
	for what, text := range map[string]string{"the issuer": o.Issuer, "the console's URL": o.URL} {
		at, err := url.Parse(text)
		if err != nil || at.Host == "" || (at.Scheme != "https" && (at.Scheme != "http" || !isLoopback(at.Host))) {
			return nil, fmt.Errorf("%s %q is no https:// address", what, text)
		}
	}
	if o.ClientID == "" {
		return nil, errors.New("the issuer needs to know the client: name its id")
	}
	sessions := newSessions()
	sessions.overTLS = strings.HasPrefix(strings.ToLower(o.URL), "https:")
	return &openID{sessions: sessions, settings: o, log: logins{log, "oidc", newLimit()}, client: &http.Client{Timeout: issuerTimeout}, asking: make(chan struct{}, mostAsking)}, nil
}

type openID struct {
	*sessions
	settings OIDC
	log      logins
	client   *http.Client

	mu     sync.Mutex
	issuer *oidc.Provider // nil until the issuer has answered once

	asking chan struct{}
}

func (o *openID) Guard(next http.Handler) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /login", o.start)
	routes.HandleFunc("GET "+callbackPath, o.callback)
	o.guard(routes, next, o.ask)
	return routes
}

func (o *openID) ask(to string) login { return login{To: to, Issuer: o.settings.Issuer} }

// flow is one unfinished login. It is kept in a cookie, so that strangers cannot fill the memory.
type flow struct{ state, nonce, verifier, to string }

func (f flow) String() string {
	return strings.Join([]string{f.state, f.nonce, f.verifier, base64.RawURLEncoding.EncodeToString([]byte(f.to))}, ".")
}

func flowOf(r *http.Request) (flow, bool) {
	cookie, err := r.Cookie(loginCookie)
	if err != nil {
		return flow{}, false
	}
	parts := strings.Split(cookie.Value, ".")
	if len(parts) != 4 {
		return flow{}, false
	}
	to, err := base64.RawURLEncoding.DecodeString(parts[3])
	f := flow{parts[0], parts[1], parts[2], string(to)}
	return f, err == nil && f.state != "" && f.nonce != "" && f.verifier != "" &&
		subtle.ConstantTimeCompare([]byte(f.state), []byte(r.URL.Query().Get("state"))) == 1
}

// start sends the browser to the issuer. Pages reach it by a link, not by a form, because their policy forbids
// forms to other sites.
func (o *openID) start(w http.ResponseWriter, r *http.Request) {
	to := hereOnly(r.URL.Query().Get("to"))
	config, _, err := o.discover(r.Context())
	if err != nil {
		o.refuse(w, r, http.StatusServiceUnavailable, to, "The issuer cannot be reached; see the console's log.", err)
		return
	}
	f := flow{rand.Text(), rand.Text(), oauth2.GenerateVerifier(), to}
	if len(f.to) > 2048 {
		f.to = "/" // a cookie has room for 4 kB
	}
	// Lax, because the issuer's redirect is a request from another site.
	o.setFlow(w, r, f.String(), int(loginLength/time.Second))
	http.Redirect(w, r, config.AuthCodeURL(f.state, oidc.Nonce(f.nonce), oauth2.S256ChallengeOption(f.verifier)), http.StatusSeeOther)
}

func (o *openID) setFlow(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: loginCookie, Value: value, Path: callbackPath, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: o.isSecure(r),
	})
}

// callback exchanges the issuer's code for a session.
func (o *openID) callback(w http.ResponseWriter, r *http.Request) {
	f, known := flowOf(r)
	o.setFlow(w, r, "", -1)
	if !known { // without a question to the issuer
		o.refuse(w, r, http.StatusUnauthorized, "/", "This login took too long, or began in another browser. Try again.", errForeignLogin)
		return
	}
	person, err := o.person(r.Context(), f, r.URL.Query())
	switch {
	case errors.Is(err, errNoGroup):
		o.refuse(w, r, http.StatusForbidden, f.to, "You are logged in at the issuer, but in no group that may use this console. Ask for one, then log in again.", err)
	case err != nil:
		o.refuse(w, r, http.StatusUnauthorized, f.to, "The issuer did not let you in; see the console's log.", err)
	default:
		o.begin(w, r, person)
		http.Redirect(w, r, hereOnly(f.to), http.StatusSeeOther)
	}
}

var (
	errForeignLogin = errors.New("the login took too long, or began in another browser")
	errNoGroup      = errors.New("the person is in no group that may use the console")
)

func (o *openID) refuse(w http.ResponseWriter, r *http.Request, status int, to, said string, err error) {
	o.log.refused(r, err)
	askToLogIn(w, r, status, login{Said: said, Issuer: o.settings.Issuer, To: to})
}

func (o *openID) discover(ctx context.Context) (*oauth2.Config, *oidc.Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.issuer == nil {
		issuer, err := oidc.NewProvider(oidc.ClientContext(ctx, o.client), o.settings.Issuer)
		if err != nil {
			return nil, nil, fmt.Errorf("discover the issuer: %w", err)
		}
		o.issuer = issuer
	}
	scopes := []string{oidc.ScopeOpenID, "profile", "email"}
	var supports struct {
		Scopes []string `json:"scopes_supported"`
	}
	if err := o.issuer.Claims(&supports); err == nil && slices.Contains(supports.Scopes, "groups") { // other issuers refuse an unknown scope
		scopes = append(scopes, "groups")
	}
	return &oauth2.Config{
		ClientID: o.settings.ClientID, ClientSecret: o.settings.Secret, Endpoint: o.issuer.Endpoint(),
		RedirectURL: strings.TrimSuffix(o.settings.URL, "/") + callbackPath, Scopes: scopes,
	}, o.issuer, nil
}

func (o *openID) person(ctx context.Context, f flow, answer url.Values) (_ Person, err error) {
	if code := answer.Get("error"); code != "" {
		return Person{}, fmt.Errorf("the issuer answered %.60q", code)
	}
	select {
	case o.asking <- struct{}{}:
	case <-ctx.Done():
		return Person{}, fmt.Errorf("wait for other logins: %w", ctx.Err())
	}
	defer func() {
		if leave := func() { <-o.asking }; err != nil {
			time.AfterFunc(failureKept, leave)
		} else {
			leave()
		}
	}()
	config, issuer, err := o.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := config.Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(f.verifier))
	if refused := (*oauth2.RetrieveError)(nil); errors.As(err, &refused) {
		return Person{}, fmt.Errorf("exchange the code: %s, error %.60q", refused.Response.Status, refused.ErrorCode) // without the body, which may contain a token
	} else if err != nil {
		return Person{}, fmt.Errorf("exchange the code: %w", err)
	}
	raw, _ := token.Extra("id_token").(string)
	proof, err := issuer.Verifier(&oidc.Config{ClientID: o.settings.ClientID}).Verify(ctx, raw)
	if err != nil {
		return Person{}, fmt.Errorf("verify the token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(proof.Nonce), []byte(f.nonce)) != 1 {
		return Person{}, errors.New("the token is of another login")
	}
	claims := map[string]any{}
	if err := proof.Claims(&claims); err != nil {
		return Person{}, fmt.Errorf("read the claims: %w", err)
	}
	if _, has := claims[o.settings.Groups]; !has && issuer.UserInfoEndpoint() != "" { // some issuers give groups at this endpoint only
		told, err := issuer.UserInfo(ctx, config.TokenSource(ctx, token))
		if err != nil {
			return Person{}, fmt.Errorf("ask for the person: %w", err)
		}
		if told.Subject != proof.Subject {
			return Person{}, errors.New("the issuer tells of another person")
		}
		if err := told.Claims(&claims); err != nil {
			return Person{}, fmt.Errorf("read the claims: %w", err)
		}
	}
	name, _ := claims["preferred_username"].(string)
	if name == "" {
		name = proof.Subject
	}
	role, may := roleOf(texts(claims[o.settings.Groups]), o.settings.Operators, o.settings.Viewers)
	if !may {
		return Person{}, errNoGroup
	}
	return Person{name, role}, nil
}

// texts returns the strings of a claim that is a list or a single string.
func texts(claim any) (all []string) {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		for _, one := range claim {
			if text, is := one.(string); is {
				all = append(all, text)
			}
		}
	}
	return all
}
