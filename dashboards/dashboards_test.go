package dashboards_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dashboards"
)

var update = flag.Bool("update", false, "write the dashboards anew")

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
	UID        string
	Title      string
	Templating struct{ List []struct{ Name string } }
	Panels     []writtenPanel
}

type writtenPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

// eachDashboard reads the files themselves: they are what people import.
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
		if got := strings.Join(variables, " "); got != "datasource namespace job provider" {
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
