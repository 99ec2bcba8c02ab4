package console

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/internal/duration"
)

// page is one address. read returns the data for its template, which is also the JSON for a program.
type page struct {
	path, name, title string
	read              func(ctx context.Context, from *operator.Console, r *http.Request) (any, error)
}

var pages = []page{
	{"/runs", "runs", "Runs", readRuns},
	{"/runs/{run}", "run", "Run", readRun},
	{"/intents", "intents", "Intents", readIntents},
	{"/incidents", "incidents", "Incidents", readIncidents},
	{"/sagas", "sagas", "Rollbacks", readSagas},
	{"/sagas/{run}", "run", "Run", func(_ context.Context, _ *operator.Console, r *http.Request) (any, error) {
		return nil, redirect(runPath(r.PathValue("run"))) // the run's page shows its rollback, too
	}},
	{"/providers", "providers", "Providers", readProviders},
	{"/workers", "workers", "Workers", readWorkers},
	{"/tenants", "tenants", "Tenants", readTenants},
	{"/operations", "operations", "Operations", readOperations},
	{"/search", "search", "Search", search},
}

// pageRows is the number of rows in a list.
const pageRows = 50

type overview struct {
	operator.Overview
	Waiting  []waiting           `json:"providers_that_need_a_look"`
	Open     []operator.Incident `json:"incidents"`
	OpenMore bool                `json:"more_incidents"`
	Dead     []operator.Intent   `json:"dead"`
	Findings []doctor.Finding    `json:"findings"` // problems and warnings of the last diagnosis
	Hour     []operator.Minute   `json:"hour"`
	Charts   []columns           `json:"-"`
}

type waiting struct {
	operator.ProviderOverview
	Reason string `json:"why"`
}

func (s *server) readOverview(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	now := overview{Findings: s.findings(ctx)}
	var err error
	if now.Overview, err = from.Overview(ctx); err != nil {
		return nil, err
	}
	if now.Hour, err = from.Hour(ctx, ""); err != nil {
		return nil, err
	}
	now.Charts = hourCharts(now.Hour)
	for _, p := range now.Providers {
		if why := p.Why(); why != "" {
			now.Waiting = append(now.Waiting, waiting{p, why})
		}
	}
	open, err := from.Incidents(ctx, operator.IncidentFilter{Limit: 20})
	if err != nil {
		return nil, err
	}
	now.Open, now.OpenMore = open.Incidents, open.After != 0
	dead, err := from.List(ctx, operator.Filter{Dead: true, Limit: 10})
	if err != nil {
		return nil, err
	}
	now.Dead = dead.Intents
	return now, hide(now.Dead)
}

// cut removes the additional row that was read only to see whether more rows exist.
func cut[T any](rows []T, limit int) (shown []T, more bool) {
	return rows[:min(limit, len(rows))], len(rows) > limit
}

// hide removes responses, because providers wrote them.
func hide(intents []operator.Intent) error {
	for i := range intents {
		intents[i].Response = nil
	}
	return nil
}

type runs struct {
	Runs   []operator.Run `json:"runs"`
	Below  int64          `json:"below"` // the upper bound of this page; 0: the newest
	Next   int64          `json:"next"`  // of the next page; 0: there is none
	Looked int            `json:"looked_at"`
}

func readRuns(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	below, err := number(r, "below")
	if err != nil {
		return nil, err
	}
	found, next, err := from.Runs(ctx, below)
	return runs{found, below, next, operator.RunsChunk}, err
}

// number returns a parameter of the request, and 0 if it is missing.
func number(r *http.Request, name string) (int64, error) {
	text := r.FormValue(name)
	if text == "" {
		return 0, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 0 {
		return 0, problem{http.StatusBadRequest, "Not understood", name + " is a number that is not negative"}
	}
	return value, nil
}

type run struct {
	*operator.RunStory
	Chart chart `json:"-"`
}

func readRun(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	story, err := from.Story(ctx, r.PathValue("run"))
	if err != nil {
		return nil, err
	}
	story.Conceal()
	return run{story, draw(story, time.Now())}, nil
}

type intents struct {
	Intents   []operator.Intent `json:"intents"`
	Filter    operator.Filter   `json:"filter"`
	Since     string            `json:"since,omitempty"` // as the reader wrote it
	Until     string            `json:"until,omitempty"`
	Below     int64             `json:"below"`           // of the next page; 0: there is none
	Bounded   bool              `json:"bounded"`         // older intents were not looked at
	Index     string            `json:"index,omitempty"` // the command that creates an index for this filter
	Looked    int               `json:"-"`
	Older     string            `json:"-"`
	Form      []field           `json:"-"` // the filter, for a change of all matching intents
	Statuses  []string          `json:"-"`
	Providers []string          `json:"-"`
}

func readIntents(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	below, err := number(r, "below")
	if err != nil {
		return nil, err
	}
	filter, err := filterOf(r.Form)
	if err != nil {
		return nil, err
	}
	found := intents{Statuses: operator.Statuses, Looked: operator.MostLooked, Filter: filter, Since: r.Form.Get("since"), Until: r.Form.Get("until")}
	for _, name := range filterFields {
		value := r.Form.Get(name)
		switch { // a relative time such as 2h would move until the form is sent
		case value == "":
			continue
		case name == "since":
			value = filter.Since.UTC().Format(time.RFC3339Nano)
		case name == "until":
			value = filter.Until.UTC().Format(time.RFC3339Nano)
		}
		found.Form = append(found.Form, field{name, value})
	}
	found.Filter.Below, found.Filter.Limit = below, pageRows
	if found.Filter.Status != "" && !slices.Contains(operator.Statuses, found.Filter.Status) {
		return nil, problem{http.StatusBadRequest, "Not understood", "status is one of " + strings.Join(operator.Statuses, ", ")}
	}
	known, err := from.Providers(ctx)
	if err != nil {
		return nil, err
	}
	for _, provider := range known {
		found.Providers = append(found.Providers, provider.Provider)
	}
	page, err := from.List(ctx, found.Filter)
	if err != nil {
		return nil, err
	}
	found.Intents, found.Below, found.Bounded, found.Index = page.Intents, page.Below, page.Bounded, page.Index
	found.Filter.Since, found.Filter.Until = time.Time{}, time.Time{} // "2h" is another time at each request, and the page must stay the same
	if page.Below != 0 {
		found.Older = behind(r, "below", strconv.FormatInt(page.Below, 10))
	}
	return found, hide(found.Intents)
}

// behind returns the address of the same list after the given row.
func behind(r *http.Request, name, last string) string {
	query := r.URL.Query()
	query.Set(name, last)
	return r.URL.Path + "?" + query.Encode()
}

// filterFields are the fields of a list's form. The list and a change of all matching intents read the same
// fields.
var filterFields = []string{"status", "dead", "provider", "tool", "run", "scope", "tenant", "reference", "error", "since", "until"}

type field struct{ Name, Value string }

func filterOf(form url.Values) (operator.Filter, error) {
	filter := operator.Filter{
		Status: form.Get("status"), Dead: form.Get("dead") != "", Provider: form.Get("provider"), Tool: form.Get("tool"),
		Run: form.Get("run"), Scope: form.Get("scope"), Tenant: form.Get("tenant"), Reference: form.Get("reference"), Error: form.Get("error"),
	}
	for name, at := range map[string]*time.Time{"since": &filter.Since, "until": &filter.Until} {
		text := form.Get(name)
		if text == "" {
			continue
		}
		var err error
		if *at, err = duration.Instant(text, time.Now(), time.UTC); err != nil {
			return filter, problem{http.StatusBadRequest, "Not understood", name + ": " + err.Error()}
		}
	}
	return filter, nil
}

type intent struct {
	*operator.Dossier
	TraceURL string            `json:"trace_url,omitempty"`
	Retry    *operator.Verdict `json:"retry,omitempty"` // the effect of a retry now; nothing is changed
}

func (s *server) readIntent(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, operator.ErrNotFound
	}
	dossier, err := from.Show(ctx, id)
	if err != nil {
		return nil, err
	}
	dossier.Conceal()
	shown := intent{Dossier: dossier}
	verdicts, err := from.Preview(ctx, operator.Retry{PolicyOf: s.PolicyOf}, []int64{id})
	if err != nil {
		return nil, err
	}
	if len(verdicts) > 0 {
		shown.Retry = &verdicts[0]
	}
	if s.TraceURL != "" && dossier.TraceID != "" {
		shown.TraceURL = strings.ReplaceAll(s.TraceURL, "{trace_id}", dossier.TraceID)
	}
	return shown, nil
}

type incidents struct {
	Incidents []operator.Incident     `json:"incidents"`
	Filter    operator.IncidentFilter `json:"filter"`
	Older     string                  `json:"older,omitempty"` // the address of the next page
	Looked    int                     `json:"looked_at"`       // how many, if older incidents were not looked at; else 0
}

func readIncidents(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	after, err := number(r, "after")
	if err != nil {
		return nil, err
	}
	id, err := number(r, "id")
	if err != nil {
		return nil, err
	}
	found := incidents{Filter: operator.IncidentFilter{
		All: r.FormValue("all") != "", ID: id, Kind: r.FormValue("kind"), Provider: r.FormValue("provider"), After: after, Limit: pageRows,
	}}
	page, err := from.Incidents(ctx, found.Filter)
	if err != nil {
		return nil, err
	}
	found.Incidents, found.Looked = page.Incidents, page.Looked
	if page.After != 0 {
		found.Older = behind(r, "after", strconv.FormatInt(page.After, 10))
	}
	return found, nil
}

type sagas struct {
	Sagas  []operator.Saga `json:"sagas"`
	State  string          `json:"state"`
	States []string        `json:"-"`
	Older  string          `json:"older,omitempty"` // the address of the next page
}

func readSagas(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	found := sagas{State: r.FormValue("state"), States: operator.SagaStates}
	var err error
	if found.Sagas, err = from.Sagas(ctx, operator.SagaFilter{State: found.State, After: r.FormValue("after"), Limit: pageRows + 1}); err != nil {
		return nil, err
	}
	var more bool
	if found.Sagas, more = cut(found.Sagas, pageRows); more {
		found.Older = behind(r, "after", found.Sagas[pageRows-1].AgentRunID)
	}
	return found, nil
}

type providers struct {
	Providers []provider        `json:"providers"`
	Workers   []operator.Worker `json:"workers"`
}

type provider struct {
	operator.ProviderOverview
	Gate operator.Provider `json:"gate"`
}

func readProviders(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	now, err := from.Overview(ctx)
	if err != nil {
		return nil, err
	}
	gates, err := from.Providers(ctx)
	if err != nil {
		return nil, err
	}
	shown := providers{Workers: now.Workers}
	for _, counted := range now.Providers {
		gate := operator.Provider{Provider: counted.Provider}
		for _, known := range gates {
			if known.Provider == counted.Provider {
				gate = known
			}
		}
		shown.Providers = append(shown.Providers, provider{counted, gate})
	}
	return shown, nil
}

type hits struct {
	Query string `json:"query"`
	operator.Found
	Looked int `json:"looked_at"`
}

// search redirects to the result if there is only one, and else lists the results.
func search(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	query := strings.TrimSpace(r.FormValue("q"))
	if query == "" {
		return nil, redirect("/")
	}
	found, err := from.Search(ctx, query, pageRows)
	switch {
	case err != nil:
		return nil, err
	case len(found.Intents) == 1 && len(found.Runs) == 0:
		return nil, redirect(fmt.Sprintf("/intents/%d", found.Intents[0].IntentID))
	case len(found.Runs) == 1 && len(found.Intents) == 0:
		return nil, redirect(runPath(found.Runs[0]))
	}
	return hits{query, found, operator.MostLooked}, hide(found.Intents)
}

// runPath returns the address of a run. An agent chose the id, so it is escaped.
func runPath(agentRunID string) string { return "/runs/" + url.PathEscape(agentRunID) }

// parse reads every template together with templates/base.html.
func parse() (map[string]*template.Template, error) {
	functions := template.FuncMap{
		"age": age, "seconds": func(s float64) string { return span(time.Duration(s * float64(time.Second))) }, "stamp": stamp, "deref": deref, "run": runPath, "path": url.PathEscape,
		"add": func(a, b int) int { return a + b }, "plus": func(a, b float64) float64 { return a + b }, "many": many, "upTo": upTo, "size": size, "took": took, "group": group, "clip": clip, "sentence": sentence,
		"join":    func(names []string) string { return strings.Join(names, ", ") },
		"verdict": func(v doctor.Verdict) string { return strings.ReplaceAll(string(v), "_", " ") },
		// rows passes a table of intents the values that it needs from its page.
		"rows": func(v view, intents []operator.Intent) any {
			return struct {
				Now  time.Time
				Who  Person
				Rows []operator.Intent
			}{v.Now, v.Who, intents}
		},
	}
	names, err := files.ReadDir("templates")
	if err != nil {
		return nil, err
	}
	parsed := map[string]*template.Template{}
	for _, file := range names {
		name := strings.TrimSuffix(file.Name(), ".html")
		parsed[name], err = template.New(name).Funcs(functions).ParseFS(files, "templates/base.html", path.Join("templates", file.Name()))
		if err != nil {
			return nil, fmt.Errorf("template %s: %w", name, err)
		}
	}
	return parsed, nil
}

var loginPage = template.Must(template.ParseFS(files, "templates/login.html"))

// many writes a count, with "+" if counting stopped at the limit.
func many(count int64) string { return upTo(operator.CountLimit, int(count)) }

func upTo(limit, count int) string {
	if count >= limit {
		return group(limit) + "+"
	}
	return group(count)
}

// size writes a number of bytes with a unit.
func size(bytes int) string {
	switch {
	case bytes < 1000:
		return strconv.Itoa(bytes) + " B"
	case bytes < 1_000_000:
		return strconv.FormatFloat(float64(bytes)/1000, 'f', 1, 64) + " kB"
	}
	return strconv.FormatFloat(float64(bytes)/1_000_000, 'f', 1, 64) + " MB"
}

func group(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// mostShown is the length of a name in a table. Names of an agent's runs often begin alike and differ at the end.
const mostShown = 36

// clip replaces the middle of a name that is too long for a table.
func clip(name string) string {
	letters := []rune(name)
	if len(letters) <= mostShown {
		return name
	}
	return string(letters[:mostShown/2-1]) + "…" + string(letters[len(letters)-mostShown/2:])
}

// sentence returns text with an upper-case first letter.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// stamp accepts a time, or a pointer that may be nil.
func stamp(at any) string {
	if when := timeOf(at); !when.IsZero() {
		return when.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	return ""
}

func timeOf(at any) time.Time {
	switch at := at.(type) {
	case time.Time:
		return at
	case *time.Time:
		if at != nil {
			return *at
		}
	}
	return time.Time{}
}

// age writes how long ago a time was, or how far ahead it is.
func age(at any, now time.Time) string {
	when := timeOf(at)
	switch passed := now.Sub(when); {
	case when.IsZero():
		return ""
	case passed >= 0 && passed < time.Second:
		return "just now"
	case passed < 0:
		return "in " + span(-passed)
	default:
		return span(passed) + " ago"
	}
}

func took(from *time.Time, to time.Time) string {
	if from == nil {
		return ""
	}
	return span(to.Sub(*from))
}

// span writes a duration in one unit.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " d"
}

// Tool describes one tool of a configuration.
type Tool struct {
	Name        string   `json:"tool"`
	Class       string   `json:"class"`
	KeyTTL      string   `json:"key_ttl,omitempty"`
	MaxAttempts int      `json:"max_attempts"`
	Timeout     string   `json:"timeout"`
	Undo        string   `json:"compensation,omitempty"` // a tool, none or missing; empty if none is needed
	AgentSafe   bool     `json:"agent_safe"`
	Missing     []string `json:"missing,omitempty"` // the fields that the tool lacks to be safe
}

// Setting is one value of a configuration, by its name in the file.
type Setting struct {
	Name         string `json:"name"`
	Value        string `json:"value"`
	AfterRestart string `json:"after_restart,omitempty"` // the value in the file, if it needs a restart to come into force
}

type workers struct {
	Workers     []operator.Worker     `json:"workers"`
	Differences []operator.Difference `json:"differences"`
}

func readWorkers(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	found, err := from.Workers(ctx)
	return workers{found, operator.Differences(found)}, err
}

type tenants struct {
	Tenants []operator.Tenant `json:"tenants"`
	Next    string            `json:"next"` // of the next page; empty: there is none
	Look    int               `json:"-"`
}

func readTenants(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	found, err := from.Tenants(ctx, r.FormValue("after"), pageRows+1)
	if err != nil {
		return nil, err
	}
	page, more := tenants{Look: operator.TenantLook}, false
	if page.Tenants, more = cut(found, pageRows); more {
		page.Next = page.Tenants[pageRows-1].Name
	}
	return page, nil
}

type operations struct {
	Operations []operator.Operation `json:"operations"`
	Next       int64                `json:"next"` // of the next page; 0: there is none
}

func readOperations(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	below, err := number(r, "below")
	if err != nil {
		return nil, err
	}
	found, err := from.Operations(ctx, below, pageRows+1)
	if err != nil {
		return nil, err
	}
	page, more := operations{}, false
	if page.Operations, more = cut(found, pageRows); more {
		page.Next = page.Operations[pageRows-1].OperationID
	}
	return page, nil
}

type diagnosis struct {
	Findings []doctor.Finding `json:"findings"`
	At       time.Time        `json:"at"`
}

// freshFor is how long a diagnosis is reused. A diagnosis uses connections, and a page asks every two seconds.
const freshFor = time.Minute

// doctorCache holds the last diagnosis. Only one request at a time examines.
type doctorCache struct {
	examining sync.Mutex
	last      atomic.Pointer[diagnosis]
}

func (c *doctorCache) isFresh() bool {
	last := c.last.Load()
	return last != nil && time.Since(last.At) < freshFor
}

func (s *server) diagnose(ctx context.Context) (diagnosis, error) {
	if s.Doctor == nil {
		return diagnosis{}, notFound("this console has no doctor")
	}
	s.doctorCache.examining.Lock()
	defer s.doctorCache.examining.Unlock()
	if !s.doctorCache.isFresh() {
		if err := s.examine(ctx); err != nil {
			return diagnosis{}, err
		}
	}
	return *s.doctorCache.last.Load(), nil
}

func (s *server) examine(ctx context.Context) error {
	findings := s.Doctor(ctx)
	if err := ctx.Err(); err != nil { // the diagnosis may have failed because the request ended
		return err
	}
	s.doctorCache.last.Store(&diagnosis{findings, time.Now().UTC()})
	return nil
}

// findings returns the problems and warnings of the last diagnosis. If it is old, another one starts in the
// background.
func (s *server) findings(ctx context.Context) []doctor.Finding {
	if s.Doctor != nil && !s.doctorCache.isFresh() && s.doctorCache.examining.TryLock() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freshFor)
		go func() {
			defer s.doctorCache.examining.Unlock()
			defer cancel()
			_ = s.examine(ctx) // the next request tries again
		}()
	}
	found := []doctor.Finding{}
	if last := s.doctorCache.last.Load(); last != nil {
		for _, finding := range last.Findings {
			if finding.Verdict == doctor.Problem || finding.Verdict == doctor.Warning {
				found = append(found, finding)
			}
		}
	}
	return found
}

func (s *server) doctor(w http.ResponseWriter, r *http.Request) {
	found, err := s.diagnose(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.show(w, r, http.StatusOK, "doctor", "Doctor", found)
}

type configuration struct {
	Tools       []Tool                `json:"tools"`
	Settings    []Setting             `json:"settings"`
	Workers     []operator.Worker     `json:"workers"`
	Differences []operator.Difference `json:"differences"`
}

func (s *server) readConfig(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	found, err := from.Workers(ctx)
	return configuration{s.Tools(), s.Settings(), found, operator.Differences(found)}, err
}
