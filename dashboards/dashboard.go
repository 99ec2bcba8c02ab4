// Package dashboards defines the Grafana dashboards in Go and writes their JSON.
//
// To change a dashboard, change overview.go or provider.go, then write the JSON again:
//
//	go test ./dashboards -args -update
//
// Each panel says what it shows, in which unit, and what to do about a bad value. Queries use two placeholders for
// the dashboard's variables: {<job>} selects the series of the chosen namespaces and jobs, and {<provider>} those
// of the chosen providers, too.
//
// Alert rules and their unit tests are kept by hand, in alerts.yaml and alerts.test.yaml.
package dashboards

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// Dashboard is a page of rows.
type Dashboard struct {
	UID         string
	Title       string
	Description string
	// OneProvider makes a dashboard for a single provider. Otherwise any number may be chosen.
	OneProvider bool
	Rows        []Row
}

// Row is a heading, with its panels below.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one graph, or one number.
type Panel struct {
	Title       string
	Unit        Unit
	Description string // the meaning of the values, and what to do; it links to the runbooks and lists that it names
	Queries     []Query
	Number      bool // shows only the newest value, in a narrow panel
	// Warn and Alarm are thresholds: they colour values above them, and are lines in a graph. Zero is no
	// threshold.
	Warn, Alarm float64
}

// Query is a PromQL expression, and the name of each of its series.
type Query struct {
	Expr   string
	Legend string
}

// Unit is one of Grafana's units.
type Unit string

// The units of panels.
const (
	Count     Unit = "short"
	PerSecond Unit = "cps"
	Seconds   Unit = "s"
	Bytes     Unit = "bytes"
	Ratio     Unit = "percentunit"
	YesNo     Unit = "bool_yes_no"
)

// All returns the dashboards by file name.
func All() map[string]Dashboard {
	return map[string]Dashboard{"overview.json": overview(), "provider.json": provider()}
}

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// quantiles returns queries for quantiles of a histogram's rate, grouped by labels.
func quantiles(histogram, filter, by, legend string, of ...string) (queries []Query) {
	if by != "" {
		by = ", " + by
	}
	for _, quantile := range of {
		queries = append(queries, Query{
			Expr:   "histogram_quantile(" + quantile + ", sum by (le" + by + ") (rate(" + histogram + "_bucket{" + filter + "}[$__rate_interval])))",
			Legend: "p" + quantile[2:] + legend,
		})
	}
	return queries
}

const (
	pageWidth    = 24
	numberWidth  = 3
	numberHeight = 4
	graphWidth   = 8
	graphHeight  = 8
	// schemaVersion is that of Grafana 10. Later versions migrate it themselves.
	schemaVersion = 39
)

// JSON returns the dashboard in the format that Grafana imports.
func (d Dashboard) JSON() ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid": d.UID, "title": d.Title, "description": d.Description, "tags": []string{"drainer"},
		"schemaVersion": schemaVersion, "version": 1, "editable": true, "refresh": "30s", "timezone": "browser",
		"time":         object{"from": "now-3h", "to": "now"},
		"graphTooltip": 1, // one cross hair on all graphs
		"annotations":  object{"list": annotations()},
		"links": []object{{
			"title": "drainer", "type": "dashboards", "tags": []string{"drainer"},
			"asDropdown": false, "includeVars": true, "keepTime": true, "icon": "external link", "targetBlank": false, "tooltip": "", "url": "",
		}},
		"templating": object{"list": d.variables()},
		"panels":     d.layout(),
	})
	return text.Bytes(), err
}

type object = map[string]any

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

func (d Dashboard) variables() []object {
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0, "refresh": 1, "regex": "", "multi": false, "includeAll": false},
		variable("namespace", "Namespace", `label_values(drainer_build_info, namespace)`, true),
		variable("job", "Job", `label_values(drainer_build_info{namespace=~"$namespace"}, job)`, true),
		variable("provider", "Provider", `label_values(drainer_claimed_rows_total{namespace=~"$namespace", job=~"$job"}, provider)`, !d.OneProvider),
		{
			"name": "console", "label": "Console", "type": "textbox", "description": "Where drainer's console is, for the links of the panels.",
			"query": consoleURL, "current": object{"text": consoleURL, "value": consoleURL}, "hide": 0,
		},
	}
}

// variable returns a variable with the values of a label. The value "all" also matches series without the label.
func variable(name, label, query string, many bool) object {
	v := object{
		"name": name, "label": label, "type": "query", "datasource": datasource, "definition": query,
		"query": object{"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
		"hide":  0, "refresh": 2, "regex": "", "sort": 1, "multi": many, "includeAll": many,
	}
	if many {
		v["allValue"] = ".*"
		v["current"] = object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}}
	}
	return v
}

// annotations mark on every graph the events that may have caused a change.
func annotations() (list []object) {
	for _, mark := range []struct{ name, colour, expr, title, text string }{
		{"New version", "blue", `max by (namespace, job, version) (drainer_build_info{<job>}) unless max by (namespace, job, version) (drainer_build_info{<job>} offset 5m)`, "{{version}}", "{{namespace}}/{{job}}"},
		{"Reload", "purple", `max by (namespace, job) (changes(drainer_config_last_reload_success_timestamp_seconds{<job>}[2m])) > 0`, "configuration reloaded", "{{namespace}}/{{job}}"},
		{"Alert", "red", `max by (alertname, severity, namespace, job, provider) (ALERTS{alertname=~"Drainer.+", alertstate="firing", <job>})`, "{{alertname}} {{provider}}", "{{severity}}"},
	} {
		list = append(list, object{
			"name": mark.name, "datasource": datasource, "enable": true, "hide": false, "iconColor": mark.colour,
			"expr": filters.Replace(mark.expr), "step": "60s", "titleFormat": mark.title, "textFormat": mark.text, "tagKeys": "", "useValueForTime": false,
		})
	}
	return list
}

// layout puts rows below one another, and the panels of a row from left to right.
func (d Dashboard) layout() (panels []object) {
	at := position{}
	for _, row := range d.Rows {
		at.newLine()
		panels = append(panels, object{
			"id": len(panels) + 1, "type": "row", "title": row.Title, "collapsed": false, "panels": []object{},
			"gridPos": at.take(pageWidth, 1),
		})
		for _, panel := range row.Panels {
			width, height := graphWidth, graphHeight
			if panel.Number {
				width, height = numberWidth, numberHeight
			}
			panels = append(panels, panel.object(len(panels)+1, at.take(width, height)))
		}
	}
	return panels
}

// position is the place of the next panel.
type position struct{ x, y, lineHeight int }

func (p *position) take(width, height int) object {
	if p.x+width > pageWidth || (p.lineHeight > 0 && height != p.lineHeight) {
		p.newLine()
	}
	place := object{"x": p.x, "y": p.y, "w": width, "h": height}
	p.x += width
	p.lineHeight = height
	return place
}

func (p *position) newLine() {
	p.x, p.y, p.lineHeight = 0, p.y+p.lineHeight, 0
}

func (p Panel) object(id int, place object) object {
	kind, options, custom := "timeseries", object{
		"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []string{}},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}, object{"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false}
	if p.Warn > 0 || p.Alarm > 0 {
		custom["thresholdsStyle"] = object{"mode": "dashed"}
	}
	if p.Number {
		kind, custom = "stat", object{}
		options = object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "value", "graphMode": "area", "textMode": "auto", "justifyMode": "auto", "orientation": "auto",
		}
	}
	return object{
		"id": id, "type": kind, "title": p.Title, "description": p.Description, "datasource": datasource,
		"gridPos": place, "options": options, "targets": p.targets(), "links": p.links(),
		"fieldConfig": object{"defaults": object{
			"unit": string(p.Unit), "min": 0, "custom": custom, "color": object{"mode": p.colorMode()},
			"thresholds": object{"mode": "absolute", "steps": p.steps()},
		}, "overrides": []object{}},
	}
}

// Runbooks is the URL of the runbooks.
const Runbooks = "https://github.com/agentoutbox/drainer/blob/main/docs/runbooks/"

// consoleURL is the console's default address.
const consoleURL = "http://127.0.0.1:9465"

var (
	runbookName = regexp.MustCompile(`\bDrainer[A-Z]\w+`)
	listCommand = regexp.MustCompile("`drainer (incidents|intents|providers|sagas) list")
)

func (p Panel) links() []object {
	links := []object{}
	for _, name := range runbookName.FindAllString(p.Description, -1) {
		links = append(links, object{"title": "Runbook " + name, "url": Runbooks + name + ".md", "targetBlank": true})
	}
	if list := listCommand.FindStringSubmatch(p.Description); list != nil {
		links = append(links, object{"title": "Console: " + list[1], "url": "${console}/" + list[1], "targetBlank": true})
	}
	return links
}

func (p Panel) colorMode() string {
	if p.Number {
		return "thresholds"
	}
	return "palette-classic"
}

func (p Panel) steps() []object {
	steps := []object{{"color": "green", "value": nil}}
	if p.Warn > 0 {
		steps = append(steps, object{"color": "orange", "value": p.Warn})
	}
	if p.Alarm > 0 {
		steps = append(steps, object{"color": "red", "value": p.Alarm})
	}
	return steps
}

func (p Panel) targets() (targets []object) {
	for i, query := range p.Queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": datasource, "expr": filters.Replace(query.Expr),
			"legendFormat": query.Legend, "range": true, "instant": false, "editorMode": "code",
		})
	}
	return targets
}

var filters = strings.NewReplacer(
	"<job>", `namespace=~"$namespace", job=~"$job"`,
	"<provider>", `namespace=~"$namespace", job=~"$job", provider=~"$provider"`,
)
