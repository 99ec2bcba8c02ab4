package dashboards_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/agentoutbox/drainer/dashboards"
)

var update = flag.Bool("update", false, "write the dashboards again")

func TestTheDashboardsAreWhatTheListSays(t *testing.T) {
	t.Parallel()
	for file, dashboard := range dashboards.All() {
		want, err := dashboard.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(file, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, file); got != string(want) {
			t.Errorf("%s is stale; run this test with -args -update", file)
		}
	}
}

// written is a dashboard as Grafana reads it.
type written struct {
	UID         string
	Title       string
	Templating  struct{ List []struct{ Name string } }
	Annotations struct {
		List []struct{ Name, Expr, TitleFormat string }
	}
	Panels []writtenPanel
}

type writtenPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	FieldConfig              struct {
		Defaults struct {
			Unit       string
			Custom     struct{ ThresholdsStyle struct{ Mode string } }
			Thresholds struct{ Steps []struct{ Value *float64 } }
		}
	}
	GridPos struct{ X, Y, W, H int }
	Links   []struct{ Title, URL string }
	Targets []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

// eachDashboard reads the files themselves, because people import them.
func eachDashboard(t *testing.T, visit func(file string, dashboard written)) {
	t.Helper()
	for file := range dashboards.All() {
		var dashboard written
		if err := json.Unmarshal([]byte(read(t, file)), &dashboard); err != nil {
			t.Fatal(err)
		}
		visit(file, dashboard)
	}
}

func eachPanel(t *testing.T, visit func(file string, panel writtenPanel)) {
	t.Helper()
	eachDashboard(t, func(file string, dashboard written) {
		for _, panel := range dashboard.Panels {
			if panel.Type != "row" {
				visit(file, panel)
			}
		}
	})
}

func TestEveryDashboardCanBeNarrowedDown(t *testing.T) {
	t.Parallel()
	eachDashboard(t, func(file string, dashboard written) {
		var variables []string
		for _, variable := range dashboard.Templating.List {
			variables = append(variables, variable.Name)
		}
		if got := strings.Join(variables, " "); got != "datasource namespace job provider console" {
			t.Errorf("%s has the variables %s", file, got)
		}
		if len(dashboard.Panels) == 0 || dashboard.UID == "" || dashboard.Title == "" {
			t.Errorf("%s is empty", file)
		}
	})
}

func TestEveryPanelSaysWhatItShowsAndWhatToDo(t *testing.T) {
	t.Parallel()
	runbook := regexp.MustCompile(`\bDrainer[A-Z]\w+`)
	eachPanel(t, func(file string, panel writtenPanel) {
		if panel.Title == "" || panel.FieldConfig.Defaults.Unit == "" || len(panel.Targets) == 0 {
			t.Errorf("%s: panel %d (%s) lacks a title, a unit or a query", file, panel.ID, panel.Title)
		}
		if !strings.HasSuffix(panel.Description, ".") || len(panel.Description) < 40 {
			t.Errorf("%s: %s says only %q", file, panel.Title, panel.Description)
		}
		for _, name := range runbook.FindAllString(panel.Description, -1) {
			if _, err := os.Stat(runbookFile(name)); err != nil {
				t.Errorf("%s: %s: %v", file, panel.Title, err)
			}
		}
		if panel.Datasource.UID != "${datasource}" {
			t.Errorf("%s: %s has a data source of its own", file, panel.Title)
		}
		for _, target := range panel.Targets {
			if target.Datasource.UID != "${datasource}" || target.LegendFormat == "" || target.RefID == "" {
				t.Errorf("%s: %s: query %q lacks a name or the chosen data source", file, panel.Title, target.RefID)
			}
		}
	})
}

// A person who has found a panel needs a link to the instructions.
func TestPanelsLeadToTheRunbooksAndThePagesThatTheyName(t *testing.T) {
	t.Parallel()
	docs := read(t, "../docs/console.md")
	runbooksLinked, pagesLinked := 0, 0
	eachPanel(t, func(file string, panel writtenPanel) {
		for _, link := range panel.Links {
			if name, is := strings.CutPrefix(link.URL, dashboards.Runbooks); is {
				runbooksLinked++
				if _, err := os.Stat(runbookFile(strings.TrimSuffix(name, ".md"))); err != nil {
					t.Errorf("%s: %s: %v", file, panel.Title, err)
				}
				continue
			}
			pagesLinked++
			if page, is := strings.CutPrefix(link.URL, "${console}"); !is || !strings.Contains(docs, "`"+page+"`") {
				t.Errorf("%s: %s leads to %s, which is no page of the console", file, panel.Title, link.URL)
			}
		}
	})
	if runbooksLinked < 15 || pagesLinked < 5 {
		t.Errorf("panels lead to %d runbooks and %d pages", runbooksLinked, pagesLinked)
	}
}

func TestALimitIsALineInItsGraph(t *testing.T) {
	t.Parallel()
	lines := 0
	eachPanel(t, func(file string, panel writtenPanel) {
		defaults := panel.FieldConfig.Defaults
		if panel.Type != "timeseries" {
			return
		}
		if limited, drawn := len(defaults.Thresholds.Steps) > 1, defaults.Custom.ThresholdsStyle.Mode == "dashed"; limited != drawn {
			t.Errorf("%s: %s has a limit: %v; draws it: %v", file, panel.Title, limited, drawn)
		} else if drawn {
			lines++
		}
	})
	if lines < 15 {
		t.Errorf("%d graphs draw a limit", lines)
	}
}

func TestDashboardsMarkDeploysReloadsAndAlertsAndUseEachVariable(t *testing.T) {
	t.Parallel()
	metrics := registered(t)
	eachDashboard(t, func(file string, dashboard written) {
		var marks []string
		for _, mark := range dashboard.Annotations.List {
			marks = append(marks, mark.Name)
			metrics.check(t, file+": "+mark.Name, mark.Expr)
		}
		if got := strings.Join(marks, ", "); got != "New version, Reload, Alert" {
			t.Errorf("%s marks %s", file, got)
		}
		_, used, _ := strings.Cut(read(t, file), `"panels": [`)
		for _, variable := range dashboard.Templating.List {
			if !strings.Contains(used, "$"+variable.Name) && !strings.Contains(used, "${"+variable.Name+"}") {
				t.Errorf("%s: no panel uses the variable %s", file, variable.Name)
			}
		}
	})
}

func TestNoTwoPanelsOverlap(t *testing.T) {
	t.Parallel()
	eachDashboard(t, func(file string, dashboard written) {
		taken := map[[2]int]string{}
		for _, panel := range dashboard.Panels {
			at := panel.GridPos
			if at.X+at.W > 24 {
				t.Errorf("%s: %s is out of the page", file, panel.Title)
			}
			for x := at.X; x < at.X+at.W; x++ {
				for y := at.Y; y < at.Y+at.H; y++ {
					if other, is := taken[[2]int{x, y}]; is {
						t.Fatalf("%s: %s lies over %s", file, panel.Title, other)
					}
					taken[[2]int{x, y}] = panel.Title
				}
			}
		}
	})
}

func TestEveryQueryHeedsTheVariablesAndAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	metrics := registered(t)
	eachPanel(t, func(file string, panel writtenPanel) {
		for _, target := range panel.Targets {
			if strings.Count(target.Expr, `namespace=~"$namespace", job=~"$job"`) != strings.Count(target.Expr, "{") {
				t.Errorf("%s: %s asks beyond the chosen jobs: %s", file, panel.Title, target.Expr)
			}
			metrics.check(t, file+": "+panel.Title, target.Expr)
		}
	})
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type alert struct {
	Alert, Record string // one of the two
	Expr          string
	KeepFiringFor string `yaml:"keep_firing_for"`
	Labels        struct{ Severity string }
	Annotations   struct {
		Summary, Description string
		RunbookURL           string `yaml:"runbook_url"`
	}
}

// rules returns the alerts, and the recording rules that they use.
func rules(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func alerts(t *testing.T) []alert {
	t.Helper()
	all := slices.DeleteFunc(rules(t), func(rule alert) bool { return rule.Record != "" })
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

func runbookFile(alert string) string { return "../docs/runbooks/" + alert + ".md" }

func TestEveryAlertIsExplainedInItsRunbook(t *testing.T) {
	t.Parallel()
	overview := read(t, "../docs/alerts.md")
	var named []string
	for _, alert := range alerts(t) {
		named = append(named, filepath.Base(runbookFile(alert.Alert)))
		if !slices.Contains([]string{"critical", "warning"}, alert.Labels.Severity) {
			t.Errorf("%s has the severity %q", alert.Alert, alert.Labels.Severity)
		}
		if alert.Annotations.Summary == "" || alert.Annotations.Description == "" {
			t.Errorf("%s says too little", alert.Alert)
		}
		if alert.Annotations.RunbookURL != dashboards.Runbooks+alert.Alert+".md" {
			t.Errorf("%s: its runbook is %s", alert.Alert, alert.Annotations.RunbookURL)
		}
		page := read(t, runbookFile(alert.Alert))
		for _, part := range []string{"# " + alert.Alert + "\n", "\n## Look\n", "\n## Do\n", "\n## Safe to ignore\n"} {
			if !strings.Contains(page, part) {
				t.Errorf("the runbook of %s lacks %q", alert.Alert, part)
			}
		}
		_, listed, _ := strings.Cut(overview, "### "+alert.Labels.Severity+"\n")
		listed, _, _ = strings.Cut(listed, "\n#")
		if !strings.Contains(listed, "- ["+alert.Alert+"](runbooks/"+alert.Alert+".md)\n") {
			t.Errorf("docs/alerts.md does not list %s as %s", alert.Alert, alert.Labels.Severity)
		}
	}
	pages, err := os.ReadDir("../docs/runbooks")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !slices.Contains(named, page.Name()) {
			t.Errorf("no alert links to %s", page.Name())
		}
	}
}

func TestEveryAlertAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	metrics := registered(t)
	for _, rule := range rules(t) {
		if _, name, recorded := strings.Cut(rule.Record, ":"); recorded {
			name, _, _ = strings.Cut(name, ":")
			metrics[name] = []string{"namespace", "job", "provider"}
		}
	}
	for _, rule := range rules(t) {
		metrics.check(t, rule.Alert+rule.Record, rule.Expr)
	}
}

// An engineer who is woken for matters that can wait ignores the next alert.
func TestFewAlertsWakeAnEngineer(t *testing.T) {
	t.Parallel()
	waking := 0
	for _, alert := range alerts(t) {
		if alert.Labels.Severity != "critical" {
			continue
		}
		waking++
		if alert.KeepFiringFor == "" {
			t.Errorf("%s wakes again when its cause comes and goes", alert.Alert)
		}
	}
	if waking > 7 {
		t.Errorf("%d alerts wake an engineer", waking)
	}
}

// Two alerts may not silence each other, and a page is not silenced by a ticket.
func TestTheInhibitionRulesKeepTheCauseOfAnIncident(t *testing.T) {
	t.Parallel()
	var file struct {
		InhibitRules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "alertmanager.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	severities := map[string]string{}
	for _, alert := range alerts(t) {
		severities[alert.Alert] = alert.Labels.Severity
	}
	silences := map[string][]string{}
	for _, rule := range file.InhibitRules {
		if !slices.Contains(rule.Equal, "namespace") || !slices.Contains(rule.Equal, "job") {
			t.Errorf("%v silences other installations too", rule.Source)
		}
		for _, source := range matched(t, rule.Source, severities) {
			for _, target := range matched(t, rule.Target, severities) {
				if source == target {
					continue // Alertmanager lets no alert silence itself
				}
				silences[source] = append(silences[source], target)
				if severities[source] == "warning" && severities[target] == "critical" {
					t.Errorf("the ticket %s silences the page %s", source, target)
				}
			}
		}
	}
	for source, targets := range silences {
		for _, target := range targets {
			if slices.Contains(silences[target], source) {
				t.Errorf("%s and %s silence each other", source, target)
			}
		}
	}
	if len(silences["DrainerDown"]) != len(severities)-1 {
		t.Errorf("DrainerDown leaves others: it silences %v", silences["DrainerDown"])
	}
	if amtool, err := exec.LookPath("amtool"); err == nil {
		if output, err := exec.CommandContext(t.Context(), amtool, "check-config", "alertmanager.yaml").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

// matched returns the alerts that a matcher of names fits. A name in the matcher that no alert has is a mistake.
func matched(t *testing.T, matchers []string, alerts map[string]string) (names []string) {
	t.Helper()
	match := regexp.MustCompile(`^alertname=~?"(.+)"$`).FindStringSubmatch(strings.Join(matchers, " "))
	if match == nil {
		t.Fatalf("%v is not by name", matchers)
	}
	for name := range strings.SplitSeq(match[1], "|") {
		if _, is := alerts[name]; !is && name != "Drainer.+" {
			t.Errorf("no alert is called %s", name)
		}
	}
	fits := regexp.MustCompile("^(?:" + match[1] + ")$")
	for name := range alerts {
		if fits.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

var ruleTests = []string{"alerts.test.yaml", "alerts.hours.test.yaml"}

// One test must see the alert fire, and one must see it silent.
func TestEveryAlertIsTestedFiringAndNotFiring(t *testing.T) {
	t.Parallel()
	type tests struct {
		Tests []struct {
			Expectations []struct {
				Expr    string
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	var file tests
	for _, name := range ruleTests {
		var part tests
		if err := yaml.Unmarshal([]byte(read(t, name)), &part); err != nil {
			t.Fatal(err)
		}
		file.Tests = append(file.Tests, part.Tests...)
	}
	seen := map[string]map[bool]bool{}
	name := regexp.MustCompile(`^ALERTS\{alertname="(\w+)", alertstate="firing"\}$`)
	for _, test := range file.Tests {
		for _, expectation := range test.Expectations {
			match := name.FindStringSubmatch(expectation.Expr)
			if match == nil {
				t.Fatalf("%s asks for no alert", expectation.Expr)
			}
			if seen[match[1]] == nil {
				seen[match[1]] = map[bool]bool{}
			}
			seen[match[1]][len(expectation.Samples) > 0] = true
		}
	}
	for _, alert := range alerts(t) {
		if !seen[alert.Alert][true] || !seen[alert.Alert][false] {
			t.Errorf("%s is tested firing: %v, not firing: %v", alert.Alert, seen[alert.Alert][true], seen[alert.Alert][false])
		}
	}
}

func TestTheRulesDoWhatTheirTestsSay(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here; install Debian's prometheus to check the alert rules")
	}
	for _, arguments := range [][]string{{"check", "rules", "--lint-fatal", "alerts.yaml"}, append([]string{"test", "rules"}, ruleTests...)} {
		if output, err := exec.CommandContext(t.Context(), promtool, arguments...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}

// metrics has the labels of the registered metrics, by name.
type metrics map[string][]string

// registered reads the metrics of the program from the documentation, which another test compares with the program.
// It gathers the runtime's metrics itself.
func registered(t *testing.T) metrics {
	t.Helper()
	found := metrics{"up": nil, "ALERTS": {"alertname", "alertstate"}}
	row := regexp.MustCompile("(?m)^- `(drainer_\\w+)`, \\w+(?: by ([^:]*))?:")
	for _, match := range row.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		found[match[1]] = strings.FieldsFunc(match[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	if len(found) < 30 {
		t.Fatalf("docs/metrics.md lists only %v", found)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		found[family.GetName()] = nil
	}
	return found
}

var (
	anyMetric  = regexp.MustCompile(`\b(?:drainer|go|process)_\w+|\b(?:up|ALERTS)\b`)
	selector   = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`(\w+)\s*[=!]`)
	quoted     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	fromScrape = []string{"namespace", "job", "instance", "le"}
)

// check refuses a query with a metric that is not registered, or with a label that the metric does not have.
func (m metrics) check(t *testing.T, where, query string) {
	t.Helper()
	query = quoted.ReplaceAllString(query, `""`)
	names := anyMetric.FindAllString(query, -1)
	if len(names) == 0 {
		t.Errorf("%s: %q asks for nothing", where, query)
	}
	for _, name := range names {
		if _, is := m.labels(name); !is {
			t.Errorf("%s: %s is not registered", where, name)
		}
	}
	for _, selected := range selector.FindAllStringSubmatch(query, -1) {
		labels, _ := m.labels(selected[1])
		for _, match := range matcher.FindAllStringSubmatch(selected[2], -1) {
			if !slices.Contains(labels, match[1]) && !slices.Contains(fromScrape, match[1]) {
				t.Errorf("%s: %s has no label %s", where, selected[1], match[1])
			}
		}
	}
}

func (m metrics) labels(name string) (labels []string, is bool) {
	if labels, is = m[name]; is {
		return labels, true
	}
	labels, is = m[strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")]
	return labels, is
}
