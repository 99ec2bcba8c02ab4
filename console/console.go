// Package console is drainer's web page for people on call: what is wrong now, a
// run at a glance, and the changes that the command line makes. It reads and
// changes through drainer/operator alone, and decides nothing itself.
//
// Payloads and responses are written by models and providers. A page shows them as
// text to an operator who gives a reason, which is recorded; no other page does.
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

// pageTimeout bounds every statement of a page. A page that needs longer is
// refused: the database has other work.
const pageTimeout = 2 * time.Second

// connections bound how many pages ask the database at once. Others wait.
const connections = 4

// Options of a console.
type Options struct {
	// Pool connects to the outbox, as a login with the role outbox_operator. At most four connections are used at once.
	Pool *pgxpool.Pool
	// Viewing connects as a login that can only read, and serves every page but the steps of a change and a reveal.
	// nil: Pool serves them too.
	Viewing *pgxpool.Pool
	// Access says who a request comes from. nil: everybody is a viewer.
	Access Access
	// PolicyOf finds what the configuration promises about a provider's operation. nil: a
	// retry of what may have been applied is refused.
	PolicyOf func(provider, operation string) (dispatch.Policy, bool)
	// Doctor examines the installation; nil: there is no such page.
	Doctor func(context.Context) []doctor.Finding
	// Tools of the configuration in force; nil: there are none.
	Tools func() []Tool
	// Preview writes the request that the configuration in force makes of an intent, without credentials; it is empty where
	// the adapter shows none. nil: no request is shown.
	Preview func(context.Context, dispatch.Request) (string, error)
	// Settings of the configuration in force, without secrets; nil: there are none.
	Settings func() []Setting
	// Redactions are paths that no page shows, in payloads and in responses.
	Redactions []Redaction
	// TraceURL is the address of a trace, with {trace_id} in it; empty: no intent links to its trace.
	TraceURL string
	// StatementTimeout bounds every statement of a page; 2 seconds if zero.
	StatementTimeout time.Duration
	// Log gets what went wrong; nil drops it.
	Log *slog.Logger
}

// New returns the console's pages. Serve them alone at a listener of their own: a
// cookie is sent to every path of a host.
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
	// A request of another site cannot change anything, nor can a page be framed, nor may
	// a text that slipped through the templates run as a script.
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

// change answers a request that an operator alone may make. It is no http.Handler, so that none is routed past the check.
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
	CanLeave bool // there is a session to end
	Now      time.Time
	Query    string // of the search box
	Renews   bool   // the same address shows it again
	Data     any
}

// page shows data that was read in one transaction. ETag lets a browser that
// asks again every two seconds be answered with 304.
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

// read runs work in a transaction that can change nothing.
func (s *server) read(ctx context.Context, pool *pgxpool.Pool, work func(context.Context, *operator.Console) error) error {
	return s.connected(ctx, pool, func(ctx context.Context, conn *pgx.Conn) error {
		return operator.Look(ctx, conn, s.StatementTimeout, work)
	})
}

// connected gives work one of the console's connections.
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

// problem is an error with words for the reader and a status for programs.
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

// fail shows what went wrong. The words of a database error stay in the log: they may
// name what a viewer is not to see.
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
	case errors.Is(err, errUnreachable) && errors.Is(err, pgpool.ErrNoLogin): // the program's name stays in the log
		told = problem{http.StatusServiceUnavailable, "No login", pgpool.ErrNoLogin.Error() + ": its password_command or its file gave none; the console's log says why, once a minute"}
	case errors.Is(err, errUnreachable):
		told = problem{http.StatusServiceUnavailable, "No database", errUnreachable.Error() + "; see the console's log, and `drainer doctor`"}
	default:
		told = problem{http.StatusInternalServerError, "Failed", "see the console's log"}
	}
	if told.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		if errors.Is(err, errUnreachable) {
			level = slog.LevelWarn // which is left out where the connect's own line says it, once a minute
		}
		s.Log.Log(r.Context(), level, "a page failed", "route", r.Pattern, "error", err)
	}
	s.show(w, r, told.Status, "problem", told.Title, told)
}

// isAge is for a line of the data that changes while nothing happens. No text looks like one, because its quotes are escaped.
func isAge(line []byte) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(string(line), " "), `": `)
	return strings.HasSuffix(name, "_age_seconds") || strings.HasSuffix(name, "_for_seconds") || name == `"beat_at`
}

// staleAfter is how long a page may stay as it is while only ages change.
const staleAfter = time.Minute

func wantsJSON(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/json")
}

// show answers with JSON where a program asks for it, with the same data.
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

// turnAway answers a stranger who is a program; it reports false for a person, who gets a page.
func turnAway(w http.ResponseWriter, r *http.Request, status int, detail string) bool {
	if !wantsJSON(r) {
		return false
	}
	body, _ := json.Marshal(problem{status, "Not logged in", detail}) // a struct of texts can be written
	w.Header().Add("Vary", "Accept")
	send(w, status, "application/json", append(body, '\n'))
	return true
}

func send(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a reader who left needs no answer
}
