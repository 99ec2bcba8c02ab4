package cli

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/config"
)

var update = flag.Bool("update", false, "write the table of metrics anew")

func TestEveryMetricIsDocumented(t *testing.T) {
	t.Parallel()
	const page = "../../../docs/metrics.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, _ := strings.Cut(string(text), "| metric |")
	want := introduction + tableOfMetrics(t)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("docs/metrics.md is stale; look at this table, then run this test with -update\n%s", tableOfMetrics(t))
	}
}

// tableOfMetrics lists what `drainer run` registers, but for what the runtime
// tells of itself.
func tableOfMetrics(t *testing.T) string {
	t.Helper()
	registered, log := listing{}, slog.New(slog.DiscardHandler)
	drainer.New(nil, nil, drainer.Settings{}, log, registered)
	registerProcess(registered)
	newReloadMetrics(registered)
	newSpanMetrics(registered)
	if _, err := partsOf(pools{}, &config.Config{Retention: config.Retention{Default: time.Hour}}, log, registered); err != nil {
		t.Fatal(err)
	}

	var table strings.Builder
	table.WriteString("| metric | kind | labels | meaning |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			table.WriteString(registered[name])
		}
	}
	return table.String()
}

// listing is a registerer that keeps a row for each metric, by its name.
type listing map[string]string

func (l listing) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		descriptions := make(chan *prometheus.Desc, 100)
		collector.Describe(descriptions)
		close(descriptions)
		for description := range descriptions {
			l.add(kindOf(collector), description.String())
		}
	}
}

func (l listing) Register(collector prometheus.Collector) error {
	l.MustRegister(collector)
	return nil
}

func (l listing) Unregister(prometheus.Collector) bool { return false }

var (
	description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel  = regexp.MustCompile(`(\w+)="(?:[^"\\]|\\.)*"`)
)

func (l listing) add(kind, text string) {
	parts := description.FindStringSubmatch(text)
	if parts == nil {
		l[text] = text + "\n" // which no table holds
		return
	}
	name, _ := strconv.Unquote(parts[1])
	help, _ := strconv.Unquote(parts[2])
	labels := constLabel.ReplaceAllString(parts[3], "$1") + parts[4]
	l[name] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, strings.ReplaceAll(labels, ",", ", "), help)
}

func kindOf(collector prometheus.Collector) string {
	switch collector.(type) {
	case interface{ IsGauge() }, interface {
		WithLabelValues(...string) prometheus.Gauge
	}, prometheus.Gauge:
		return "gauge"
	case *prometheus.CounterVec, prometheus.Counter:
		return "counter"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	}
	return "other"
}
