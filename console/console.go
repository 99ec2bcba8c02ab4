// Package console is drainer's web page for people on call. It shows present problems and the story of a run, and
// offers the same changes as the command line. It reads and changes through drainer/operator only, and makes no
// decision itself.
//
// Models and providers write payloads and responses. Only one page shows them: as text, to an operator who gives a
// reason, which is recorded.
package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/internal/pgpool"
)

//go:embed templates static
var files embed.FS

// pageTimeout bounds every statement of a page. A slower page is refused, so that the database can do its other
// work.
const pageTimeout = 2 * time.Second

// connections bounds the pages that ask the database at the same time. Others wait.
const connections = 4

// Options configures a console.
type Options struct {
	// Pool connects to the outbox with a login of the role outbox_operator. The console uses at most four
	// connections at once.
	Pool *pgxpool.Pool
	// Viewing connects with a login that can only read. It serves every page except the steps of a change and a
	// reveal. If nil, Pool serves them, too.
	Viewing *pgxpool.Pool
	// Access identifies the sender of a request. If nil, every user of this machine is a viewer.
	Access Access
	// PolicyOf finds the configured policy of a provider's operation. If nil, a retry is refused for an intent
	// that may have been applied.
	PolicyOf func(provider, operation string) (dispatch.Policy, bool)
	// Doctor examines the installation. If nil, there is no such page.
	Doctor func(context.Context) []doctor.Finding
	// Tools returns the tools of the configuration in force. It may be nil.
	Tools func() []Tool
	// Preview returns the request that the configuration in force renders for an intent, without credentials. It
	// returns "" if the adapter shows none. If nil, no request is shown.
	Preview func(context.Context, dispatch.Request) (string, error)
	// Settings returns the settings of the configuration in force, without secrets. It may be nil.
	Settings func() []Setting
	// Redactions are paths that no page shows, in payloads and in responses.
	Redactions []Redaction
	// TraceURL is the address of a trace, with {trace_id} in it. If empty, no intent links to its trace.
	TraceURL string
	// StatementTimeout bounds every statement of a page. The default is 2 seconds.
	StatementTimeout time.Duration
	// Log gets the failures. If nil, they are dropped.
	Log *slog.Logger
}

// New returns the console's pages. Serve them at a listener of their own, without other handlers, because a browser
// sends the cookie to every path of a host.
func New(options Options) (http.Handler, error) {
	if options.Access == nil {
		options.Access = everybodyViews{}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Viewing == nil {
		options.Viewing = options.Pool
	}
	if options.Tools == nil {
		options.Tools = func() []Tool { return nil }
	}
	if options.Settings == nil {
		options.Settings = func() []Setting { return nil }
	}
	options.StatementTimeout = cmp.Or(options.StatementTimeout, pageTimeout)
	s := &server{Options: options, places: make(chan struct{}, connections)}
	var err error
	if s.templates, err = parse(); err != nil {
		return nil, err
	}
	routes := http.NewServeMux()
	for _, page := range pages {
		routes.HandleFunc("GET "+page.path, s.page(page))
	}
	routes.HandleFunc("GET /{$}", s.page(page{"/{$}", "overview", "What is wrong now", s.readOverview}))
	routes.HandleFunc("GET /providers/{name}", s.page(page{"", "provider", "Provider", s.readProvider}))
	routes.HandleFunc("GET /intents/{id}", s.page(page{"", "intent", "Intent", s.readIntent}))
	routes.HandleFunc("GET /doctor", s.doctor)
	routes.HandleFunc("GET /config", s.page(page{"/config", "config", "Configuration", s.readConfig}))
	routes.HandleFunc("GET /changes/{id}", s.change)
	routes.HandleFunc("POST /intents/{id}/reveal", s.byOperators(s.reveal))
	for _, action := range actionsBy(options.PolicyOf) {
		routes.HandleFunc("POST "+action.path, s.byOperators(s.action(action)))
	}
	static, err := fs.Sub(files, "static")
	if err != nil {
		return nil, err
	}
	assets := http.StripPrefix("/static/", http.FileServerFS(static))
	routes.HandleFunc("GET /static/{file}", func(w http.ResponseWriter, r *http.Request) {
		if _, err := fs.Stat(static, r.PathValue("file")); err != nil {
			s.fail(w, r, notFound("there is no such file"))
			return
		}
		assets.ServeHTTP(w, r)
	})
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, notFound("there is no such page"))
	})
	// Three protections: a request from another site cannot change anything, a page cannot be framed, and a text
	// that the templates failed to escape cannot run as a script.
	return secured(http.NewCrossOriginProtection().Handler(s.Access.Guard(routes))), nil
}

func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
			"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, 256<<10)
		next.ServeHTTP(w, r)
	})
}

// change answers a request that only an operator may make. It is not an http.Handler, so that no route can skip
// the check.
type change func(w http.ResponseWriter, r *http.Request, who Person)

func (s *server) byOperators(change change) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, known := s.Access.Who(r)
		if !known || !who.MayChange() {
			s.fail(w, r, problem{http.StatusForbidden, "Not permitted", "this needs the role operator; a viewer only reads"})
			return
		}
		change(w, r, who)
	}
}

type server struct {
	Options

	places    chan struct{}
	templates map[string]*template.Template
	changes   changes

	doctorCache doctorCache
}

// view holds the values that every template may use.
type view struct {
	Page     string // the template's name
	Title    string
	Who      Person
	CanLeave bool // there is a session that can end
	Now      time.Time
	Query    string // the text in the search box
	Renews   bool   // the browser may request the same address again to refresh it
	Data     any
}

// page shows data that was read in one transaction. A browser asks again every two seconds, and the ETag lets it
// get a 304.
func (s *server) page(page page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var data any
		err := s.read(r.Context(), s.Viewing, func(ctx context.Context, from *operator.Console) (err error) {
			data, err = page.read(ctx, from, r)
			return err
		})
		var elsewhere redirect
		switch {
		case errors.As(err, &elsewhere):
			http.Redirect(w, r, string(elsewhere), http.StatusSeeOther)
		case err != nil:
			s.fail(w, r, err)
		default:
			s.show(w, r, http.StatusOK, page.name, page.title, data)
		}
	}
}

// read runs work in a transaction that cannot change anything.
func (s *server) read(ctx context.Context, pool *pgxpool.Pool, work func(context.Context, *operator.Console) error) error {
	return s.connected(ctx, pool, func(ctx context.Context, conn *pgx.Conn) error {
		return operator.Look(ctx, conn, s.StatementTimeout, work)
	})
}

// connected calls work with one of the console's connections.
func (s *server) connected(ctx context.Context, pool *pgxpool.Pool, work func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*s.StatementTimeout)
	defer cancel()
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-ctx.Done():
		return errBusy
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	defer conn.Release()
	return work(ctx, conn.Conn())
}

var (
	errBusy        = errors.New("too many pages are being read; try again in a moment")
	errUnreachable = errors.New("the database cannot be reached")
)

// problem is an error with a text for people and a status for programs.
type problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func (p problem) Error() string { return p.Detail }

func notFound(detail string) problem {
	return problem{http.StatusNotFound, "Not found", detail}
}

func refused(detail string) problem {
	return problem{http.StatusUnprocessableEntity, "Not done", detail}
}

type redirect string

func (r redirect) Error() string { return "see " + string(r) }

// fail shows an error. The text of a database error stays in the log, because it may contain data that a viewer
// may not see.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var told problem
	var database *pgconn.PgError
	switch {
	case errors.As(err, &told):
	case errors.Is(err, operator.ErrNotFound), errors.Is(err, operator.ErrNoRun):
		told = notFound("the outbox holds nothing of this name; it may have been pruned")
	case errors.Is(err, operator.ErrUnsigned), errors.Is(err, operator.ErrNoSaga), errors.Is(err, operator.ErrNotStuck), errors.Is(err, operator.ErrLost), errors.As(err, new(*operator.SagaError)), errors.As(err, new(*operator.UnknownProviderError)):
		told = refused(err.Error())
	case errors.Is(err, errBusy):
		told = problem{http.StatusServiceUnavailable, "Busy", err.Error()}
	case errors.As(err, &database) && database.Code == "57014":
		told = problem{http.StatusServiceUnavailable, "Too slow", fmt.Sprintf("the database took more than %s for this page; narrow the filter", s.StatementTimeout)}
	case errors.As(err, &database) && database.Code == "42501":
		told = problem{http.StatusForbidden, "Not permitted", "the console's login lacks the role outbox_operator, or its login for viewers the role outbox_auditor"}
	case errors.Is(err, errUnreachable) && pgpool.Refused(err):
		told = problem{http.StatusServiceUnavailable, "Login refused", pgpool.ErrRefused.Error() + "; each page tries again, with the password that is then in force; see `drainer doctor`"}
	case errors.Is(err, errUnreachable) && errors.Is(err, pgpool.ErrNoLogin): // the name of the program stays in the log
		told = problem{http.StatusServiceUnavailable, "No login", pgpool.ErrNoLogin.Error() + ": its password_command or its file gave none; the console's log says why, once a minute"}
	case errors.Is(err, errUnreachable):
		told = problem{http.StatusServiceUnavailable, "No database", errUnreachable.Error() + "; see the console's log, and `drainer doctor`"}
	default:
		told = problem{http.StatusInternalServerError, "Failed", "see the console's log"}
	}
	if told.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if errors.Is(err, errUnreachable) {
			level = slog.LevelWarn // dropped if the failed connect has its own log line, once a minute
		}
		s.Log.Log(r.Context(), level, "a page failed", "route", r.Pattern, "error", err)
	}
	s.show(w, r, told.Status, "problem", told.Title, told)
}

// isAge reports whether a JSON line holds an age, which changes while nothing happens. No line of a text matches,
// because quotes in texts are escaped.
func isAge(line []byte) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(string(line), " "), `": `)
	return strings.HasSuffix(name, "_age_seconds") || strings.HasSuffix(name, "_for_seconds") || name == `"beat_at`
}

// staleAfter is how long a browser may keep a page if only ages change.
const staleAfter = time.Minute

func wantsJSON(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/json")
}

// show answers with a page, or with the same data as JSON if the client asks for it.
func (s *server) show(w http.ResponseWriter, r *http.Request, status int, name, title string, data any) {
	body, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		http.Error(w, "the data cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	who, _ := s.Access.Who(r)
	asksForJSON := wantsJSON(r)
	header := w.Header()
	header.Add("Vary", "Accept")
	if status == http.StatusOK && r.Method == http.MethodGet {
		hash := sha256.New()
		fmt.Fprintf(hash, "%s %v %v", name, who, asksForJSON)
		for line := range bytes.Lines(body) {
			if !isAge(line) {
				hash.Write(line)
			}
		}
		sum := hex.EncodeToString(hash.Sum(nil))
		held, sentAt, _ := strings.Cut(strings.Trim(r.Header.Get("If-None-Match"), `"`), "-")
		if sent, err := strconv.ParseInt(sentAt, 10, 64); err == nil && held == sum && time.Since(time.Unix(sent, 0)) < staleAfter {
			header.Set("ETag", r.Header.Get("If-None-Match"))
			w.WriteHeader(http.StatusNotModified)
			return
		}
		header.Set("ETag", fmt.Sprintf(`"%s-%d"`, sum, time.Now().Unix()))
	}
	if asksForJSON {
		send(w, status, "application/json", append(body, '\n'))
		return
	}
	var text bytes.Buffer
	err = s.templates[name].ExecuteTemplate(&text, "base", view{
		Page: name, Title: title, Who: who, CanLeave: s.Access.HasSessions(), Now: time.Now().UTC(), Query: r.URL.Query().Get("q"), Data: data,
		Renews: r.Method == http.MethodGet && status == http.StatusOK && name != "search",
	})
	if err != nil {
		s.Log.Error("a template failed", "page", name, "error", err)
		http.Error(w, "the page cannot be shown; see the console's log", http.StatusInternalServerError)
		return
	}
	send(w, status, "text/html; charset=utf-8", text.Bytes())
}

// turnAway answers an unauthenticated program with JSON. It reports false for a browser, which gets a page.
func turnAway(w http.ResponseWriter, r *http.Request, status int, detail string) bool {
	if !wantsJSON(r) {
		return false
	}
	body, _ := json.Marshal(problem{status, "Not logged in", detail}) // a struct of strings can always be encoded
	w.Header().Add("Vary", "Accept")
	send(w, status, "application/json", append(body, '\n'))
	return true
}

func send(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a write fails only if the client has left
}
