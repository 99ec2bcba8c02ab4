package drainer

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/agentoutbox/drainer/dispatch"
)

// A scrape of 4,000 tools of 20 providers has to fit into what a Prometheus takes without a word.
// The census, the jobs and the runtime have the rest, about 600 series.
func TestTheSeriesOfManyToolsAreBounded(t *testing.T) {
	t.Parallel()
	const mostSeries, mostBytes = 8000 - 600, (700 - 60) * 1000
	var providers []dispatch.Provider
	for p := range 20 {
		provider := dispatch.Provider{Name: fmt.Sprintf("provider_%02d", p), Tools: map[string]dispatch.Policy{}}
		for tool := range 200 {
			provider.Tools[fmt.Sprintf("operation_%03d", tool)] = dispatch.Policy{}
		}
		providers = append(providers, provider)
	}
	registry := prometheus.NewRegistry()
	o := newObserver(providers, false, slog.New(slog.DiscardHandler), registry)
	scrape := func() (series, bytes int) {
		recorder := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		for line := range strings.Lines(recorder.Body.String()) {
			if !strings.HasPrefix(line, "#") {
				series++
			}
		}
		return series, recorder.Body.Len()
	}
	unused, _ := scrape()
	if unused > 1500 {
		t.Errorf("there are %d series before any tool is used", unused)
	}
	for _, provider := range providers {
		o.gate(Gate{}, Gate{Name: provider.Name, Breaker: BreakerClosed})
		for operation := range provider.Tools {
			o.attempted(&Settlement{
				Row:    &Row{Tuple: dispatch.Tuple{ToolName: provider.Name + "/" + operation}},
				Result: dispatch.Result{Outcome: dispatch.Completed}, Decision: dispatch.Decision{Status: dispatch.StatusCompleted},
			}, operation)
		}
	}
	for range 2 {
		if series, bytes := scrape(); series < 4000 || series > mostSeries || bytes > mostBytes {
			t.Errorf("there are %d series in %d bytes, want at most %d and %d", series, bytes, mostSeries, mostBytes)
		} else {
			t.Logf("%d series before, %d after each tool was used, %d bytes", unused, series, bytes)
		}
	}
}

func TestTheFirstIncreaseOfAToolIsSeen(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	o := newObserver([]dispatch.Provider{{Name: "sim", Tools: map[string]dispatch.Policy{"act": {}}}}, false, slog.New(slog.DiscardHandler), registry)
	count := func(outcome dispatch.Outcome) {
		o.attempted(&Settlement{Row: &Row{Tuple: dispatch.Tuple{ToolName: "sim/act"}}, Result: dispatch.Result{Outcome: outcome}}, "act")
	}
	const rejected, completed = "dispatch_attempts_total act rejected sim", "dispatch_attempts_total act completed sim"
	if _, there := values(t, registry)[completed]; there {
		t.Error("there is a series of a tool that was not used")
	}
	count(dispatch.Rejected)
	count(dispatch.Rejected)
	for _, want := range []float64{0, 2} {
		got := values(t, registry)
		if done, there := got[completed]; got[rejected] != want || !there || done != 0 {
			t.Errorf("a scrape shows %v and %v (%t), want %v and 0", got[rejected], done, there, want)
		}
	}
	count(dispatch.Rejected)
	if got := values(t, registry)[rejected]; got != 3 {
		t.Errorf("later it shows %v, want 3", got)
	}
}
