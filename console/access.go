package console

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
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

// Role says which requests a person may make.
type Role string

// A viewer only reads. An operator may also change things.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
)

// Person is the sender of a request. The history records Name with each change.
type Person struct {
	Name string
	Role Role
}

// MayChange lets templates leave out buttons whose use would be refused.
func (p Person) MayChange() bool { return p.Role == Operator }

// Access identifies the sender of a request.
type Access interface {
	// Who reports false if the sender is not authenticated.
	Who(r *http.Request) (Person, bool)
	// Guard passes requests of known senders to next, and answers all others.
	Guard(next http.Handler) http.Handler
	// HasSessions reports whether a person can log out.
	HasSessions() bool
}

// everybodyViews is for a loopback address: each user of this machine may read.
type everybodyViews struct{}

func (everybodyViews) Who(*http.Request) (Person, bool) { return Person{"", Viewer}, true }

func (everybodyViews) HasSessions() bool { return false }

// Guard refuses requests for other host names. Another site can point its own name to this address, and its pages
// could then read the answers.
func (everybodyViews) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.Host) {
			http.Error(w, "without authentication the console answers to localhost alone", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopback accepts a host with or without a port.
func isLoopback(host string) bool {
	name := host
	if alone, _, err := net.SplitHostPort(host); err == nil {
		name = alone
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return name == "localhost" || (err == nil && address.IsLoopback())
}

// ErrTokens describes the format of a file of tokens.
var ErrTokens = errors.New("a file of tokens has lines such as `alice operator TOKEN`, with role viewer or operator and a token of at least 20 characters; # begins a comment")

const (
	sessionCookie = "drainer_session"
	sessionLength = 12 * time.Hour
	// mostSessions bounds their memory. Beyond it, the oldest session ends.
	mostSessions = 1000
)

// sessions holds the sessions of people who logged in at this console.
type sessions struct {
	mu   sync.Mutex
	open map[[sha256.Size]byte]session // by the cookie's hash
	now  func() time.Time

	overTLS bool // browsers reach the console over TLS, even if no header of a proxy says so
}

type session struct {
	person Person
	ends   time.Time
}

func newSessions() *sessions {
	return &sessions{open: map[[sha256.Size]byte]session{}, now: time.Now}
}

type tokens struct {
	*sessions
	people map[[sha256.Size]byte]Person // by the token's hash
	// attempts limits unknown tokens, of all clients together. It never delays a known token: else a stranger
	// could lock all people out. The length of tokens prevents guessing.
	attempts *rate.Limiter
	log      logins
}

// newLimit allows ten events at once, and then one a second.
func newLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second), 10) }

const tooMany = "Too many attempts. Try again in a few seconds."

// logins logs refused logins, at a limited rate. No line contains the token.
type logins struct {
	log   *slog.Logger
	mode  string
	lines *rate.Limiter
}

func (l logins) refused(r *http.Request, why error) {
	if l.lines.Allow() {
		l.log.Warn("a login was refused", "mode", l.mode, "address", addressOf(r), "error", why)
	}
}

// addressOf returns the address of the peer. Behind a proxy, that is the proxy: any client could write the header
// with its own address.
func addressOf(r *http.Request) string {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return peer.Addr().Unmap().String()
	}
	return r.RemoteAddr
}

// Tokens returns an Access that gives a session for a token. The file has a line `NAME ROLE TOKEN` for each
// person.
func Tokens(file []byte, log *slog.Logger) (Access, error) {
	t := &tokens{newSessions(), map[[sha256.Size]byte]Person{}, newLimit(), logins{log, "token", newLimit()}}
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

// HasSessions is true.
func (s *sessions) HasSessions() bool { return true }

// Who returns the person of the request's session, unless it has ended.
func (s *sessions) Who(r *http.Request) (Person, bool) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return Person{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	open, found := s.open[sha256.Sum256([]byte(cookie.Value))]
	return open.person, found && s.now().Before(open.ends)
}

func (t *tokens) Guard(next http.Handler) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) {
		askToLogIn(w, r, http.StatusOK, login{To: r.URL.Query().Get("to")})
	})
	routes.HandleFunc("POST /login", t.login)
	t.guard(routes, next, func(to string) login { return login{To: to} })
	return routes
}

// guard passes on requests with a session, and shows a login page for others.
func (s *sessions) guard(routes *http.ServeMux, next http.Handler, ask func(to string) login) {
	routes.HandleFunc("POST /logout", s.logout)
	routes.Handle("GET /static/", next)
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, known := s.Who(r); known {
			next.ServeHTTP(w, r)
			return
		}
		to := "/" // the target of a form is not a page
		if r.Method == http.MethodGet {
			to = hereOnly(r.URL.RequestURI())
			if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
				// The cookie is Strict, so a browser does not send it with a link in a chat or with the issuer's
				// redirect. It sends the cookie when the page itself navigates.
				comeAgain(w, to)
				return
			}
		}
		askToLogIn(w, r, http.StatusUnauthorized, ask(to))
	})
}

// login holds the data of the login page: a form for a token, or a link to the issuer.
type login struct{ Said, To, Issuer string }

func askToLogIn(w http.ResponseWriter, r *http.Request, status int, how login) {
	if status != http.StatusOK && turnAway(w, r, status, cmp.Or(how.Said, "The console shows its pages to people who have logged in.")) {
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = loginPage.ExecuteTemplate(w, "login", how) // a write fails only if the client has left
}

func comeAgain(w http.ResponseWriter, to string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = loginPage.ExecuteTemplate(w, "again", to) // a write fails only if the client has left
}

func (t *tokens) login(w http.ResponseWriter, r *http.Request) {
	to := r.PostFormValue("to")
	given := sha256.Sum256([]byte(strings.TrimSpace(r.PostFormValue("token"))))
	person, known := Person{}, false
	for hash, owner := range t.people { // each token is compared, so that the time reveals nothing
		if subtle.ConstantTimeCompare(hash[:], given[:]) == 1 {
			person, known = owner, true
		}
	}
	if !known && !t.attempts.Allow() {
		askToLogIn(w, r, http.StatusTooManyRequests, login{Said: tooMany, To: to})
		return
	}
	if !known {
		t.log.refused(r, errUnknownToken)
		askToLogIn(w, r, http.StatusUnauthorized, login{Said: "This token is not known.", To: to})
		return
	}
	t.begin(w, r, person)
	http.Redirect(w, r, hereOnly(to), http.StatusSeeOther)
}

var errUnknownToken = errors.New("the token is not known")

// hereOnly returns the path to open after a login, and "/" for an address of another site. A browser treats a
// backslash as a slash, and drops tabs.
func hereOnly(to string) string {
	if _, err := url.Parse(to); err != nil || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.Contains(to, `\`) {
		return "/"
	}
	return to
}

func (s *sessions) isSecure(r *http.Request) bool {
	return s.overTLS || r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https"
}

func (s *sessions) begin(w http.ResponseWriter, r *http.Request, person Person) {
	secret := rand.Text() + rand.Text()
	http.SetCookie(w, &http.Cookie{
		Name: sessionCookie, Value: secret, Path: "/", MaxAge: int(sessionLength / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.isSecure(r),
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var oldest [sha256.Size]byte
	for hash, open := range s.open {
		if !now.Before(open.ends) {
			delete(s.open, hash)
		} else if first, found := s.open[oldest]; !found || open.ends.Before(first.ends) {
			oldest = hash
		}
	}
	if len(s.open) >= mostSessions {
		delete(s.open, oldest)
	}
	s.open[sha256.Sum256([]byte(secret))] = session{person, now.Add(sessionLength)}
}

func (s *sessions) logout(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(sessionCookie); err == nil {
		s.mu.Lock()
		delete(s.open, sha256.Sum256([]byte(cookie.Value)))
		s.mu.Unlock()
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", MaxAge: -1, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// Proxy trusts the headers of a proxy that authenticates people. The proxy proves itself by its address, by a client
// certificate, or by both if both are configured. Without either, no peer is trusted.
type Proxy struct {
	Trusted     []netip.Prefix // addresses from which the proxy sends its requests
	Names       []string       // DNS names or URIs, one of which its verified certificate carries: the listener verifies it
	UserHeader  string         // such as X-Forwarded-User
	GroupHeader string         // such as X-Forwarded-Groups: names separated by commas; empty: no person is in a group
	Operators   string         // the group whose members are operators
	Viewers     string         // the group whose members may read; empty: every person may
}

// HasSessions is false: the proxy manages the sessions.
func (Proxy) HasSessions() bool { return false }

// Who accepts the headers from a trusted peer only.
func (p Proxy) Who(r *http.Request) (Person, bool) {
	if !p.sent(r) {
		return Person{}, false
	}
	name := r.Header.Get(p.UserHeader)
	if name == "" || len(r.Header.Values(p.UserHeader)) != 1 {
		return Person{}, false
	}
	var names []string
	if groups := r.Header.Values(p.GroupHeader); len(groups) == 1 { // if there are two headers, the reader may have written one
		for name := range strings.SplitSeq(groups[0], ",") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	role, may := roleOf(names, p.Operators, p.Viewers)
	return Person{name, role}, may
}

func (p Proxy) sent(r *http.Request) bool {
	if len(p.Names) > 0 && !carries(r.TLS, p.Names) {
		return false
	}
	if len(p.Trusted) == 0 {
		return len(p.Names) > 0
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && slices.ContainsFunc(p.Trusted, func(prefix netip.Prefix) bool { return prefix.Contains(peer.Addr().Unmap()) })
}

// carries reports whether the client's verified certificate has one of the names. A name such as spiffe://mesh/proxy is
// compared with URIs only: an authority may let workloads choose their DNS names more freely.
func carries(state *tls.ConnectionState, names []string) bool {
	if state == nil || len(state.VerifiedChains) == 0 {
		return false
	}
	leaf := state.VerifiedChains[0][0] // each chain begins with the client's own certificate
	return slices.ContainsFunc(names, func(name string) bool {
		if strings.Contains(name, ":") {
			return slices.ContainsFunc(leaf.URIs, func(uri *url.URL) bool { return uri.String() == name })
		}
		return slices.Contains(leaf.DNSNames, name)
	})
}

// roleOf reports false for a person who may not even read.
func roleOf(groups []string, operators, viewers string) (Role, bool) {
	if operators != "" && slices.Contains(groups, operators) {
		return Operator, true
	}
	return Viewer, viewers == "" || slices.Contains(groups, viewers)
}

// Guard refuses requests that did not come through the proxy, and people who may not read.
func (p Proxy) Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, known := p.Who(r); !known {
			const why = "the console is reached through its proxy, which says who asks; where --viewers names a group, its members and the operators may read"
			if !turnAway(w, r, http.StatusUnauthorized, why) {
				http.Error(w, why, http.StatusUnauthorized)
			}
			return
		}
		next.ServeHTTP(w, r)
	})
}
