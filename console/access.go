package console

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Role says what a person may do.
type Role string

// A viewer reads. An operator also changes.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
)

// Person is who a request comes from. Name stands in the history of what it changes.
type Person struct {
	Name string
	Role Role
}

// MayChange is for the templates: they offer no button that would be refused.
func (p Person) MayChange() bool { return p.Role == Operator }

// Access finds out who a request comes from.
type Access interface {
	// Who reports false where the request comes from a stranger.
	Who(r *http.Request) (Person, bool)
	// Guard lets through what Who knows, and answers the rest.
	Guard(next http.Handler) http.Handler
	// HasSessions reports whether a person can log out.
	HasSessions() bool
}

// everybodyViews is for a loopback address: each user of the machine may read.
type everybodyViews struct{}

func (everybodyViews) Who(*http.Request) (Person, bool) { return Person{"", Viewer}, true }

func (everybodyViews) HasSessions() bool { return false }

// Guard refuses other host names: a page of another site can have its own name point
// to this address, and the browser would take the answer for that site's.
func (everybodyViews) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(w, "without authentication the console answers to localhost alone", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback is for a host with or without a port.
func isLoopback(host string) bool {
	name := host
	if alone, _, err := net.SplitHostPort(host); err == nil {
		name = alone
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || (err == nil && address.IsLoopback())
}

// ErrTokens says what a file of tokens must look like.
var ErrTokens = errors.New("a file of tokens has lines such as `alice operator TOKEN`, with role viewer or operator and a token of at least 20 characters; # begins a comment")

const (
	sessionCookie = "drainer_session"
	sessionLength = 12 * time.Hour
	// mostSessions bounds their memory: beyond it the oldest one ends.
	mostSessions = 1000
)

type tokens struct {
	people map[[sha256.Size]byte]Person // by the token's hash
	// attempts slows strangers down, all together. It never holds up a token that is known:
	// else a stranger could keep all people out. Guessing fails by the length of tokens.
	attempts *rate.Limiter

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]session // by the cookie's hash
	now      func() time.Time
}

type session struct {
	person Person
	ends   time.Time
}

// Tokens gives each person of a file a session for a token that is known to them
// alone: one line a person, `NAME ROLE TOKEN`.
func Tokens(file []byte) (Access, error) {
	t := &tokens{
		people: map[[sha256.Size]byte]Person{}, sessions: map[[sha256.Size]byte]session{},
		attempts: rate.NewLimiter(rate.Every(time.Second), 10), now: time.Now,
	}
	lines := bufio.NewScanner(bytes.NewReader(file))
	for number := 1; lines.Scan(); number++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 || len(words[2]) < 20 || (words[1] != string(Viewer) && words[1] != string(Operator)) {
			return nil, fmt.Errorf("line %d: %w", number, ErrTokens)
		}
		hash := sha256.Sum256([]byte(words[2]))
		if _, taken := t.people[hash]; taken {
			return nil, fmt.Errorf("line %d: this token is another line's, too: the history could not tell whose change it was", number)
		}
		t.people[hash] = Person{words[0], Role(words[1])}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.people) == 0 {
		return nil, ErrTokens
	}
	return t, nil
}

func (t *tokens) HasSessions() bool { return true }

func (t *tokens) Who(r *http.Request) (Person, bool) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return Person{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	open, found := t.sessions[sha256.Sum256([]byte(cookie.Value))]
	return open.person, found && t.now().Before(open.ends)
}

func (t *tokens) Guard(next http.Handler) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) { t.ask(w, http.StatusOK, "", r.URL.Query().Get("to")) })
	routes.HandleFunc("POST /login", t.login)
	routes.HandleFunc("POST /logout", t.logout)
	routes.Handle("GET /static/", next)
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, known := t.Who(r); known {
			next.ServeHTTP(w, r)
			return
		}
		to := "/" // a form is sent to an address that has no page
		if r.Method == http.MethodGet {
			to = r.URL.RequestURI()
		}
		t.ask(w, http.StatusUnauthorized, "", to)
	})
	return routes
}

func (*tokens) ask(w http.ResponseWriter, status int, said, to string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = loginPage.ExecuteTemplate(w, "login", struct{ Said, To string }{said, to}) // a reader who left needs no answer
}

func (t *tokens) login(w http.ResponseWriter, r *http.Request) {
	to := r.PostFormValue("to")
	given := sha256.Sum256([]byte(strings.TrimSpace(r.PostFormValue("token"))))
	person, known := Person{}, false
	for hash, owner := range t.people { // each is compared, so the time tells nothing
		if subtle.ConstantTimeCompare(hash[:], given[:]) == 1 {
			person, known = owner, true
		}
	}
	if !known && !t.attempts.Allow() {
		t.ask(w, http.StatusTooManyRequests, "Too many attempts. Try again in a few seconds.", to)
		return
	}
	if !known {
		t.ask(w, http.StatusUnauthorized, "This token is not known.", to)
		return
	}
	secret := rand.Text() + rand.Text()
	t.begin(secret, person)
	http.SetCookie(w, &http.Cookie{
		Name: sessionCookie, Value: secret, Path: "/", MaxAge: int(sessionLength / time.Second),
		// Lax: a link in a page or a chat opens the console. No GET changes anything.
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
	// Never to another site. A browser takes a backslash for a slash, and leaves tabs out.
	if _, err := url.Parse(to); err != nil || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.Contains(to, `\`) {
		to = "/"
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (t *tokens) begin(secret string, person Person) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var oldest [sha256.Size]byte
	for hash, open := range t.sessions {
		if !now.Before(open.ends) {
			delete(t.sessions, hash)
		} else if first, found := t.sessions[oldest]; !found || open.ends.Before(first.ends) {
			oldest = hash
		}
	}
	if len(t.sessions) >= mostSessions {
		delete(t.sessions, oldest)
	}
	t.sessions[sha256.Sum256([]byte(secret))] = session{person, now.Add(sessionLength)}
}

func (t *tokens) logout(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(sessionCookie); err == nil {
		t.mu.Lock()
		delete(t.sessions, sha256.Sum256([]byte(cookie.Value)))
		t.mu.Unlock()
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// Proxy trusts the headers of a proxy that authenticates people.
type Proxy struct {
	Trusted     []netip.Prefix // addresses that the proxy's requests come from
	UserHeader  string         // such as X-Forwarded-User
	GroupHeader string         // such as X-Forwarded-Groups: names between commas; empty: everybody is a viewer
	Operators   string         // the group whose members are operators
}

// HasSessions is false: the proxy has them.
func (Proxy) HasSessions() bool { return false }

// Who believes the headers of a trusted peer alone.
func (p Proxy) Who(r *http.Request) (Person, bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.ContainsFunc(p.Trusted, func(prefix netip.Prefix) bool { return prefix.Contains(peer.Addr().Unmap()) }) {
		return Person{}, false
	}
	name := r.Header.Get(p.UserHeader)
	if name == "" || len(r.Header.Values(p.UserHeader)) != 1 {
		return Person{}, false
	}
	groups := r.Header.Values(p.GroupHeader)
	if p.Operators == "" || len(groups) != 1 { // of two, one may be the reader's own
		return Person{name, Viewer}, true
	}
	for group := range strings.SplitSeq(groups[0], ",") {
		if strings.TrimSpace(group) == p.Operators {
			return Person{name, Operator}, true
		}
	}
	return Person{name, Viewer}, true
}

// Guard refuses strangers.
func (p Proxy) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, known := p.Who(r); !known {
			http.Error(w, "the console is reached through its proxy, which says who asks", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
