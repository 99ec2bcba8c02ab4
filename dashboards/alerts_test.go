package dashboards_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

type alert struct {
	Alert       string
	Expr        string
	Labels      struct{ Severity string }
	Annotations struct {
		Summary, Description string
		RunbookURL           string `yaml:"runbook_url"`
	}
}

func alerts(t *testing.T) (all []alert) {
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
	if len(all) == 0 {
		t.Fatal("there are no rules")
	}
	return all
}

const runbooks = "https://github.com/agentoutbox/drainer/blob/main/docs/runbooks/"

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
		if alert.Annotations.RunbookURL != runbooks+alert.Alert+".md" {
			t.Errorf("%s: its runbook is %s", alert.Alert, alert.Annotations.RunbookURL)
		}
		page := read(t, runbookFile(alert.Alert))
		for _, part := range []string{"# " + alert.Alert + "\n", "\n## Look\n", "\n## Do\n", "\n## Safe to ignore\n"} {
			if !strings.Contains(page, part) {
				t.Errorf("the runbook of %s lacks %q", alert.Alert, part)
			}
		}
		if !strings.Contains(overview, "[`"+alert.Alert+"`](runbooks/"+alert.Alert+".md) | "+alert.Labels.Severity+" |") {
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
	for _, alert := range alerts(t) {
		metrics.check(t, alert.Alert, alert.Expr)
	}
}

// One test must see the alert fire, and one must see it silent.
func TestEveryAlertIsTestedFiringAndNotFiring(t *testing.T) {
	t.Parallel()
	var file struct {
		Tests []struct {
			Expectations []struct {
				Expr    string
				Samples []any `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "alerts.test.yaml")), &file); err != nil {
		t.Fatal(err)
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
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here; install Debian's prometheus to check the alert rules")
	}
	for _, arguments := range [][]string{{"check", "rules", "--lint-fatal", "alerts.yaml"}, {"test", "rules", "alerts.test.yaml"}} {
		if output, err := exec.CommandContext(t.Context(), promtool, arguments...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
}
