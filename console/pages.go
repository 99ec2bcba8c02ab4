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
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// page is one address: read gathers what its template shows, and what a program is
// answered as JSON.
type page struct {
	path, name, title string
	read              func(ctx context.Context, from *operator.Console, r *http.Request) (any, error)
}

var pages = []page{
	{"/{$}", "overview", "What is wrong now", readOverview},
	{"/runs", "runs", "Runs", readRuns},
	{"/runs/{run}", "run", "Run", readRun},
	{"/intents", "intents", "Intents", readIntents},
	{"/intents/{id}", "intent", "Intent", readIntent},
	{"/incidents", "incidents", "Incidents", readIncidents},
	{"/sagas", "sagas", "Rollbacks", readSagas},
	{"/providers", "providers", "Providers", readProviders},
	{"/workers", "workers", "Workers", readWorkers},
	{"/tenants", "tenants", "Tenants", readTenants},
	{"/operations", "operations", "Operations", readOperations},
	{"/search", "search", "Search", search},
}

// pageRows is how many rows a page lists.
const pageRows = 50

type overview struct {
	operator.Overview
	Waiting  []operator.ProviderOverview `json:"providers_that_need_a_look"`
	Open     []operator.Incident         `json:"incidents"`
	OpenMore bool                        `json:"more_incidents"`
	Dead     []operator.Intent           `json:"dead"`
	Hour     []operator.Minute           `json:"hour"`
	Charts   []columns                   `json:"-"`
}

// late is how old the oldest due row of a provider may be before it is shown among what is
// wrong: a healthy lane takes a row within a second.
const late = 30 * time.Second

func readOverview(ctx context.Context, from *operator.Console, _ *http.Request) (any, error) {
	var now overview
	var err error
	if now.Overview, err = from.Overview(ctx); err != nil {
		return nil, err
	}
	if now.Hour, err = from.Hour(ctx, ""); err != nil {
		return nil, err
	}
	now.Charts = hourCharts(now.Hour)
	for _, p := range now.Providers {
		isLate := p.OldestDueAgeSeconds > late.Seconds() || p.OldestInProgressAgeSeconds > 10*late.Seconds()
		if p.Paused || p.Breaker == nil || *p.Breaker != "closed" || isLate {
			now.Waiting = append(now.Waiting, p)
		}
	}
	if now.Open, err = from.Incidents(ctx, operator.IncidentFilter{Limit: 21}); err != nil {
		return nil, err
	}
	now.OpenMore = len(now.Open) > 20
	now.Open = now.Open[:min(20, len(now.Open))]
	dead, err := from.List(ctx, operator.Filter{Dead: true, Limit: 10})
	if err != nil {
		return nil, err
	}
	now.Dead = dead.Intents
	return now, hide(now.Dead)
}

// hide takes out what models and providers wrote.
func hide(intents []operator.Intent) error {
	for i := range intents {
		intents[i].Response = nil
	}
	return nil
}

type runs struct {
	Runs   []operator.Run `json:"runs"`
	Below  int64          `json:"below"` // of this page; 0: the newest
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

// number is a parameter of the address; 0 where it is missing.
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
	for i := range story.Steps {
		story.Steps[i].Response = nil
		if undo := story.Steps[i].Undo; undo != nil {
			undo.Response = nil
		}
	}
	return run{story, draw(story, time.Now())}, nil
}

type intents struct {
	Intents   []operator.Intent `json:"intents"`
	Filter    operator.Filter   `json:"filter"`
	Below     int64             `json:"below"`   // of the next page; 0: there is none
	Bounded   bool              `json:"bounded"` // older intents were not looked at
	Looked    int               `json:"-"`
	Older     string            `json:"-"`
	Statuses  []string          `json:"-"`
	Providers []string          `json:"-"`
}

func readIntents(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	below, err := number(r, "below")
	if err != nil {
		return nil, err
	}
	found := intents{Statuses: operator.Statuses, Looked: operator.MostLooked, Filter: filterOf(r.Form)}
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
	found.Intents, found.Below, found.Bounded = page.Intents, page.Below, page.Bounded
	if page.Below != 0 {
		query := r.URL.Query()
		query.Set("below", strconv.FormatInt(page.Below, 10))
		found.Older = "/intents?" + query.Encode()
	}
	return found, hide(found.Intents)
}

func filterOf(form url.Values) operator.Filter {
	return operator.Filter{
		Status: form.Get("status"), Dead: form.Get("dead") != "", Provider: form.Get("provider"), Tool: form.Get("tool"),
		Run: form.Get("run"), Error: form.Get("error"),
	}
}

type intent struct {
	*operator.Dossier
	Payload *int `json:"payload,omitempty"` // never there: it shadows the dossier's
}

func readIntent(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, operator.ErrNotFound
	}
	dossier, err := from.Show(ctx, id)
	if err != nil {
		return nil, err
	}
	dossier.Response = nil
	for i := range dossier.History {
		attempt := &dossier.History[i]
		attempt.Response, attempt.ResponseHeaders, attempt.Problem = nil, nil, nil
	}
	return intent{Dossier: dossier}, nil
}

type incidents struct {
	Incidents []operator.Incident     `json:"incidents"`
	Filter    operator.IncidentFilter `json:"filter"`
	More      bool                    `json:"more"`
}

func readIncidents(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	found := incidents{Filter: operator.IncidentFilter{All: r.FormValue("all") != "", Kind: r.FormValue("kind"), Limit: pageRows + 1}}
	var err error
	if found.Incidents, err = from.Incidents(ctx, found.Filter); err != nil {
		return nil, err
	}
	found.More = len(found.Incidents) > pageRows
	found.Incidents = found.Incidents[:min(pageRows, len(found.Incidents))]
	return found, nil
}

type sagas struct {
	Sagas  []operator.Saga `json:"sagas"`
	State  string          `json:"state"`
	States []string        `json:"-"`
	More   bool            `json:"more"`
}

func readSagas(ctx context.Context, from *operator.Console, r *http.Request) (any, error) {
	found := sagas{State: r.FormValue("state"), States: operator.SagaStates}
	var err error
	if found.Sagas, err = from.Sagas(ctx, operator.SagaFilter{State: found.State, Limit: pageRows + 1}); err != nil {
		return nil, err
	}
	found.More = len(found.Sagas) > pageRows
	found.Sagas = found.Sagas[:min(pageRows, len(found.Sagas))]
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

// search leads to the only thing that a text means, and else lists what it may mean.
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

// runPath is the address of a run, whose id an agent chose.
func runPath(agentRunID string) string { return "/runs/" + url.PathEscape(agentRunID) }

// parse reads every template together with the frame of all pages.
func parse() (map[string]*template.Template, error) {
	functions := template.FuncMap{
		"age": age, "seconds": func(s float64) string { return span(time.Duration(s * float64(time.Second))) }, "stamp": stamp, "deref": deref, "run": runPath, "path": url.PathEscape,
		"add": func(a, b int) int { return a + b }, "plus": func(a, b float64) float64 { return a + b }, "many": many, "upTo": upTo, "size": size, "took": took, "group": group, "clip": clip, "join": join, "verdict": verdict, "sentence": sentence,
		// rows gives a table of intents what it needs of the page around it.
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

// many writes a count that stopped at its limit as what it is.
func many(count int64) string { return upTo(operator.CountLimit, int(count)) }

func upTo(limit, count int) string {
	if count >= limit {
		return group(limit) + "+"
	}
	return group(count)
}

// size is a number of bytes in a unit in which it is short.
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

// mostShown is how much of a name stands in a table. Runs of one agent differ at their end, and often begin alike.
const mostShown = 36

// clip takes the middle out of a name that is too long for a table.
func clip(name string) string {
	letters := []rune(name)
	if len(letters) <= mostShown {
		return name
	}
	return string(letters[:mostShown/2-1]) + "…" + string(letters[len(letters)-mostShown/2:])
}

// sentence begins a text as a sentence does.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

func join(names []string) string { return strings.Join(names, ", ") }

func verdict(v doctor.Verdict) string { return strings.ReplaceAll(string(v), "_", " ") }

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// stamp takes a time, or a pointer to one that may be nil.
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

// age says how long ago a time was, or how far ahead it is.
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

// span is a length of time in one unit, or two where the first is small.
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
