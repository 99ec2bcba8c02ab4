package console

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
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

// sessions are those of people who logged in here.
type sessions struct {
	mu   sync.Mutex
	open map[[sha256.Size]byte]session // by the cookie's hash
	now  func() time.Time

	overTLS bool // browsers reach the console by TLS, whatever a proxy says
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
	// attempts slows strangers down, all together. It never holds up a token that is known:
	// else a stranger could keep all people out. Guessing fails by the length of tokens.
	attempts *rate.Limiter
	log      logins
}

// newLimit lets through ten attempts at once, and one a second.
func newLimit() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second), 10) }

const tooMany = "Too many attempts. Try again in a few seconds."

// logins writes a line for a login that was refused, and not more than the log can take. No line has
// the token.
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

// addressOf is the peer's: a proxy's, if there is one, whose header any reader could write.
func addressOf(r *http.Request) string {
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return peer.Addr().Unmap().String()
	}
	return r.RemoteAddr
}

// Tokens gives each person of a file a session for a token that is known to them
// alone: one line a person, `NAME ROLE TOKEN`.
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

// Who is a person whose session has not ended.
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

// guard lets those through who have a session, and shows others how to get one.
func (s *sessions) guard(routes *http.ServeMux, next http.Handler, ask func(to string) login) {
	routes.HandleFunc("POST /logout", s.logout)
	routes.Handle("GET /static/", next)
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, known := s.Who(r); known {
			next.ServeHTTP(w, r)
			return
		}
		to := "/" // a form is sent to an address that has no page
		if r.Method == http.MethodGet {
			to = hereOnly(r.URL.RequestURI())
			if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
				// A link in a chat or the issuer's redirect came without the cookie, which is Strict. The page's
				// own navigation has it.
				comeAgain(w, to)
				return
			}
		}
		askToLogIn(w, r, http.StatusUnauthorized, ask(to))
	})
}

// login has a form for a token, or a link to the issuer.
type login struct{ Said, To, Issuer string }

func askToLogIn(w http.ResponseWriter, r *http.Request, status int, how login) {
	if status != http.StatusOK && turnAway(w, r, status, cmp.Or(how.Said, "The console shows its pages to people who have logged in.")) {
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = loginPage.ExecuteTemplate(w, "login", how) // a reader who left needs no answer
}

func comeAgain(w http.ResponseWriter, to string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = loginPage.ExecuteTemplate(w, "again", to) // a reader who left needs no answer
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

// hereOnly is the path to go to after a login, never to another site. A browser takes a backslash for a slash,
// and leaves tabs out.
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

// Proxy trusts the headers of a proxy that authenticates people.
type Proxy struct {
	Trusted     []netip.Prefix // addresses that the proxy's requests come from
	UserHeader  string         // such as X-Forwarded-User
	GroupHeader string         // such as X-Forwarded-Groups: names between commas; empty: every person is in none
	Operators   string         // the group whose members are operators
	Viewers     string         // the group whose members view; empty: every person does
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
	var names []string
	if groups := r.Header.Values(p.GroupHeader); len(groups) == 1 { // of two, one may be the reader's own
		for name := range strings.SplitSeq(groups[0], ",") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	role, may := roleOf(names, p.Operators, p.Viewers)
	return Person{name, role}, may
}

// roleOf reports false for a person who may not read either.
func roleOf(groups []string, operators, viewers string) (Role, bool) {
	if operators != "" && slices.Contains(groups, operators) {
		return Operator, true
	}
	return Viewer, viewers == "" || slices.Contains(groups, viewers)
}

// Guard refuses strangers.
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
