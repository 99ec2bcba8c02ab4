package dashboards_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/drainertest"
)

// alertmanager is a real Alertmanager, with the routes and inhibition rules that are shipped. It notifies the test.
type alertmanager struct {
	url string

	mu    sync.Mutex
	pages map[string][][]string // by namespace, the firing alerts in each notification of the receiver on-call
}

// shortWaits replaces two times: half a minute in which alerts of a group are gathered, and the time between two
// notifications of the group.
const shortWaits = "route:\n  group_wait: 500ms\n  group_interval: 200ms\n"

func (a *alertmanager) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var notification struct {
		GroupLabels map[string]string
		Alerts      []struct {
			Status string
			Labels map[string]string
		}
	}
	_ = json.NewDecoder(r.Body).Decode(&notification) // a page that cannot be read is missing
	var firing []string
	for _, alert := range notification.Alerts {
		if alert.Status == "firing" {
			firing = append(firing, alert.Labels["alertname"])
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	namespace := notification.GroupLabels["namespace"]
	a.pages[namespace] = append(a.pages[namespace], firing)
}

// paged returns the new alerts in each notification of on-call so far, and "again" for a notification without new
// ones.
func (a *alertmanager) paged(namespace string) (pages []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var before []string
	for _, firing := range a.pages[namespace] {
		added := slices.DeleteFunc(slices.Clone(firing), func(name string) bool { return slices.Contains(before, name) })
		if len(added) == 0 {
			added = []string{"again"}
		}
		pages, before = append(pages, added...), firing
	}
	return pages
}

func startAlertmanager(t *testing.T) *alertmanager {
	t.Helper()
	program := ""
	for _, name := range []string{"alertmanager", "prometheus-alertmanager"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
		}
	}
	if program == "" {
		t.Skip("no Alertmanager here; install Debian's prometheus-alertmanager to see who is woken")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") // Alertmanager cannot report a port that it chose
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := &alertmanager{url: "http://" + address, pages: map[string][][]string{}}
	onCall := httptest.NewServer(server)
	t.Cleanup(onCall.Close)
	config := strings.Replace(read(t, "alertmanager.yaml"), "route:\n", shortWaits, 1)
	config = strings.Replace(config, "  - name: on-call\n", fmt.Sprintf("  - name: on-call\n    webhook_configs: [{url: %q, send_resolved: false}]\n", onCall.URL), 1)
	file := filepath.Join(t.TempDir(), "alertmanager.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command := exec.CommandContext(t.Context(), program, "--config.file="+file, "--storage.path="+t.TempDir(),
		"--web.listen-address="+address, "--cluster.listen-address=")
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	drainertest.Eventually(t, "it is ready", func() bool { return server.ask(t, http.MethodGet, "/-/ready", nil, nil) == nil })
	return server
}

func (a *alertmanager) ask(t *testing.T, method, path string, body, into any) error {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), method, a.url+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", path, response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

type postedAlert struct {
	Labels map[string]string `json:"labels"`
	EndsAt string            `json:"endsAt,omitempty"`
}

// heard returns the sorted names of the alerts of one installation, by receiver. Suppressed alerts are under the
// empty name.
func (a *alertmanager) heard(t *testing.T, namespace string) map[string][]string {
	t.Helper()
	var listed []struct {
		Labels    map[string]string
		Status    struct{ State string }
		Receivers []struct{ Name string }
	}
	if err := a.ask(t, http.MethodGet, `/api/v2/alerts?filter=namespace%3D%22`+namespace+`%22`, nil, &listed); err != nil {
		t.Fatal(err)
	}
	by := map[string][]string{}
	for _, alert := range listed {
		for _, receiver := range alert.Receivers {
			if alert.Status.State == "suppressed" {
				receiver.Name = ""
			}
			by[receiver.Name] = append(by[receiver.Name], alert.Labels["alertname"])
		}
	}
	for _, names := range by {
		slices.Sort(names)
	}
	return by
}

// A story is an incident, from its first minute to its last alert.
type story struct {
	minutes []int // the length of each phase; before and after them there is no incident
	// series has a gauge's value in each phase, "_" for no value, or a counter's increase a minute.
	series map[string]string
	// Each line of heard has a minute and the alerts that fire from then on. Those in parentheses are suppressed.
	// Of the others the critical ones wake an engineer.
	heard []string
	wakes string // the one alert that wakes an engineer, or none
}

const ended = "DrainerStoryEnded" // it is critical, and no rule suppresses it

const before, after = 400, 150 // minutes, counted from the begin of an incident

var stories = map[string]story{
	"every replica is gone for half an hour": {
		minutes: []int{30, 2},
		series: map[string]string{
			`drainer_build_info{instance="a"}`:                                   "1 _ 1 1",
			`up{instance="a"}`:                                                   "1 0 1 1",
			`drainer_census_duration_seconds{instance="a"}`:                      "1 _ 1 1",
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 _ 1800 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 _ 1800 0",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +900 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +900 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
		heard: []string{
			"2: DrainerDown",
			"5: DrainerDown (DrainerReplicaDown)",
			"35: DrainerDown",
			"40:",
		},
		wakes: "DrainerDown",
	},
	"Postgres is away for half an hour": {
		minutes: []int{30, 2},
		series: map[string]string{
			`drainer_build_info{instance="a"}`:                                   "1 1 1 1",
			`drainer_census_duration_seconds{instance="a"}`:                      "1 _ 1 1",
			`drainer_batch_failures_total{instance="a"}`:                         "+0 +6 +0 +0",
			`drainer_lane_stalled{provider="stripe"}`:                            "0 1 0 0",
			`drainer_oldest_job_age_seconds{kind="saga_look"}`:                   "0 _ 1800 0",
			`drainer_page_look_age_seconds{instance="a"}`:                        "2 900 2 2",
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 _ 1800 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 _ 1800 0",
			`drainer_outbox_oldest_in_progress_age_seconds{provider="stripe"}`:   "1 _ 1800 1",
			`drainer_provider_timeout_seconds{provider="stripe"}`:                "30 30 30 30",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +900 +60",
			`drainer_leases_lost_total{provider="stripe"}`:                       "+0 +0 +8 +0",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +900 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
		heard: []string{
			"3: DrainerBatchesFailing (DrainerNotCounting)",
			"5: DrainerBatchesFailing (DrainerNotCounting) (DrainerLaneStalled/stripe) (DrainerJobsStuck)",
			"30: DrainerBatchesFailing (DrainerNotCounting) (DrainerLaneStalled/stripe) (DrainerJobsStuck) (DrainerLeasesLost/stripe)",
			"31: DrainerBatchesFailing (DrainerNotCounting) (DrainerLaneStalled/stripe) (DrainerJobsStuck) (DrainerLeasesLost/stripe) (DrainerRowInProgressTooLong/stripe)",
			"35: DrainerBatchesFailing (DrainerLaneStalled/stripe) (DrainerLeasesLost/stripe) (DrainerRowInProgressTooLong/stripe)",
			"37: DrainerBatchesFailing (DrainerLaneStalled/stripe) (DrainerLeasesLost/stripe)",
			"40: DrainerBatchesFailing (DrainerLeasesLost/stripe)",
			"46:",
		},
		wakes: "DrainerBatchesFailing",
	},
	"a new password does not reach the daemon for twenty minutes": {
		minutes: []int{20, 2},
		series: map[string]string{
			`drainer_build_info{instance="a"}`:                                   "1 1 1 1",
			`drainer_census_duration_seconds{instance="a"}`:                      "1 _ 1 1",
			`drainer_database_login_refused{instance="a"}`:                       "0 1 0 0",
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 _ 1200 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 _ 1200 0",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +600 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +600 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
		heard: []string{
			"3: DrainerBatchesFailing (DrainerNotCounting)",
			"5: DrainerBatchesFailing (DrainerNotCounting) (DrainerLoginRefused)",
			"25: DrainerBatchesFailing (DrainerLoginRefused)",
			"35:",
		},
		wakes: "DrainerBatchesFailing",
	},
	"dispatches to a provider hang for half an hour": {
		minutes: []int{30, 2},
		series: map[string]string{
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 1200 1800 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 1200 1800 0",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +900 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +900 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
		heard: []string{
			"5: DrainerOldestDueTooOld/stripe (DrainerBacklog)",
			"14: DrainerStalled/stripe (DrainerBacklog) (DrainerOldestDueTooOld/stripe)",
			"42: DrainerStalled/stripe",
			"45:",
		},
		wakes: "DrainerStalled",
	},
	"a provider is away for forty minutes": {
		minutes: []int{40, 2},
		series: map[string]string{
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 1500 2400 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 1200 2400 0",
			`drainer_circuit_breaker_state{provider="stripe",state="closed"}`:    "1 0 1 1",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +1200 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +1200 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
		heard: []string{
			"15: DrainerCircuitOpen/stripe",
			"50:",
		},
	},
	"a provider is away for ten minutes": {
		minutes: []int{10, 2},
		series: map[string]string{
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 300 600 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 300 600 0",
			`drainer_circuit_breaker_state{provider="stripe",state="closed"}`:    "1 0 1 1",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +0 +300 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +0 +300 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +0 +0 +60",
		},
	},
	"a provider is away and will forget keys, and another is away": {
		minutes: []int{20, 20},
		series: map[string]string{
			`drainer_outbox_key_ttl_near_rows{provider="stripe"}`:             "0 0 3 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:        "0 900 1800 0",
			`drainer_circuit_breaker_state{provider="stripe",state="closed"}`: "1 0 0 1",
			`drainer_circuit_breaker_state{provider="slack",state="closed"}`:  "1 0 0 1",
		},
		heard: []string{
			"15: DrainerCircuitOpen/slack DrainerCircuitOpen/stripe",
			"20: DrainerKeyTTLNear/stripe DrainerCircuitOpen/slack (DrainerCircuitOpen/stripe)",
			"45: DrainerCircuitOpen/slack DrainerCircuitOpen/stripe",
			"50:",
		},
		wakes: "DrainerKeyTTLNear",
	},
	"a provider refuses everything": {
		minutes: []int{30},
		series: map[string]string{
			`drainer_settled_total{provider="stripe",status="completed"}`: "+60 +0 +60",
			`drainer_settled_total{provider="stripe",status="failed"}`:    "+0 +60 +0",
		},
		heard: []string{
			"8: DrainerFailuresHigh/stripe",
			"56:",
		},
		wakes: "DrainerFailuresHigh",
	},
	"a provider is slow": {
		minutes: []int{60},
		series: map[string]string{
			`drainer_outbox_due_rows{provider="stripe"}`:                         "0 1500 0",
			`drainer_outbox_oldest_due_age_seconds{provider="stripe"}`:           "0 400 0",
			`drainer_claimed_rows_total{provider="stripe"}`:                      "+60 +60 +60",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:          "+60 +60 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`: "+60 +30 +60",
		},
		heard: []string{
			"5: DrainerOldestDueTooOld/stripe (DrainerBacklog)",
			"27: DrainerDeliveriesLate/stripe (DrainerBacklog) (DrainerOldestDueTooOld/stripe)",
			"70: DrainerDeliveriesLate/stripe",
			"101:",
		},
		wakes: "DrainerDeliveriesLate",
	},
	"a provider is slow and another hangs, each beside an operation of it that is away": {
		minutes: []int{60},
		series: map[string]string{
			`drainer_operation_circuit_breaker_open{provider="stripe",operation="refund"}`: "0 1 0",
			`drainer_operation_circuit_breaker_open{provider="slack",operation="post"}`:    "0 1 0",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:                    "+60 +60 +60",
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`:           "+60 +30 +60",
			`drainer_outbox_due_rows{provider="slack"}`:                                    "0 60 0",
			`drainer_claimed_rows_total{provider="slack"}`:                                 "+60 +0 +60",
		},
		heard: []string{
			"14: DrainerStalled/slack",
			"15: DrainerStalled/slack DrainerCircuitOpen/slack DrainerCircuitOpen/stripe",
			"27: DrainerStalled/slack DrainerCircuitOpen/slack DrainerCircuitOpen/stripe DrainerDeliveriesLate/stripe",
			"75: DrainerDeliveriesLate/stripe DrainerCircuitOpen/slack DrainerCircuitOpen/stripe",
			"80: DrainerCircuitOpen/slack DrainerCircuitOpen/stripe",
			"85:",
		},
		wakes: "DrainerStalled DrainerDeliveriesLate",
	},
	"an operation fails for an hour but for its probes beside another that is slow": {
		minutes: slices.Repeat([]int{5, 1}, 10),
		series: map[string]string{
			`drainer_operation_circuit_breaker_open{provider="stripe",operation="refund"}`: "_ " + strings.Repeat("1 0 ", 10) + "0",
			`drainer_delivery_latency_seconds_count{provider="stripe"}`:                    strings.Repeat("+60 ", 22),
			`drainer_delivery_latency_seconds_bucket{provider="stripe",le="60"}`:           "+60 " + strings.Repeat("+30 ", 20) + "+60",
		},
		heard: []string{
			"27: DrainerDeliveriesLate/stripe",
			"33: DrainerDeliveriesLate/stripe DrainerCircuitOpen/stripe",
			"79: DrainerCircuitOpen/stripe",
			"81:",
		},
		wakes: "DrainerDeliveriesLate",
	},
	"an operation is away for fourteen minutes": {
		minutes: []int{14},
		series:  map[string]string{`drainer_operation_circuit_breaker_open{provider="stripe",operation="refund"}`: "_ 1 0"},
	},
	"the pager is away while an effect is in doubt": {
		minutes: []int{5, 40},
		series: map[string]string{
			`drainer_incidents_open{kind="outcome_unknown"}`:                    "0 1 1 0",
			`drainer_incidents_oldest_open_age_seconds{kind="outcome_unknown"}`: "0 150 1900 0",
			`drainer_incidents_oldest_unpaged_age_seconds{instance="a"}`:        "0 150 900 0",
			`drainer_pages_total{channel="pagerduty",outcome="unreachable"}`:    "+0 +1 +1 +0",
			`drainer_pages_total{channel="pagerduty",outcome="delivered"}`:      "+0 +0 +0 +0",
		},
		heard: []string{
			"0: DrainerOutcomeUnknown",
			"5: DrainerOutcomeUnknown DrainerIncidentUnacknowledged DrainerPagingFailing",
			"6: DrainerIncidentUnpaged (DrainerOutcomeUnknown) (DrainerIncidentUnacknowledged) (DrainerPagingFailing)",
			"45: DrainerIncidentUnpaged (DrainerPagingFailing)",
			"50: DrainerPagingFailing",
			"64:",
		},
		wakes: "DrainerIncidentUnpaged",
	},
}

// step has the alerts that fire from one minute of a story on.
type step struct {
	minute int
	fires  []string // names, with the provider where an alert has one
	silent map[string]bool
}

func (s story) steps(t *testing.T) (steps []step) {
	t.Helper()
	for _, line := range s.heard {
		words := strings.Fields(line)
		minute, err := strconv.Atoi(strings.TrimSuffix(words[0], ":"))
		if err != nil {
			t.Fatal(err)
		}
		now := step{minute: minute, silent: map[string]bool{}}
		for _, word := range words[1:] {
			alert := strings.Trim(word, "()")
			now.fires, now.silent[alert] = append(now.fires, alert), alert != word
		}
		steps = append(steps, now)
	}
	return steps
}

// ruleTest returns a test for promtool of the alerts that fire in each minute of the stories. Each story has a
// namespace.
func ruleTest(t *testing.T, rules string) string {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "rule_files: [%s]\nevaluation_interval: 1m\ngroup_eval_order: [drainer-objective, drainer]\ntests:\n  - interval: 1m\n    input_series:\n", rules)
	var fires [after]string
	for name, s := range stories {
		minutes := slices.Concat([]int{before}, s.minutes, []int{after})
		for series, phases := range s.series {
			fmt.Fprintf(&text, `      - {series: '%s', values: '`, strings.Replace(series, "{", fmt.Sprintf(`{namespace="%s",job="drainer",`, namespaceOf(name)), 1))
			total := 0
			for i, value := range strings.Fields(phases) {
				rest := minutes[i] - 1
				if increase, counts := strings.CutPrefix(value, "+"); counts {
					each, err := strconv.Atoi(increase)
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&text, "%d+%dx%d ", total+each, each, rest)
					total += each * minutes[i]
				} else if value == "_" {
					fmt.Fprintf(&text, "stale _x%d ", rest)
				} else {
					fmt.Fprintf(&text, "%sx%d ", value, rest)
				}
			}
			text.WriteString("'}\n")
		}
		for steps := s.steps(t); len(steps) > 0; steps = steps[1:] {
			end := after
			if len(steps) > 1 {
				end = steps[1].minute
			}
			for _, alert := range steps[0].fires {
				alert, provider, has := strings.Cut(alert, "/")
				if has {
					provider = fmt.Sprintf(`, provider="%s"`, provider)
				}
				for minute := steps[0].minute; minute < end; minute++ {
					fires[minute] += fmt.Sprintf(`{value: 1, labels: '{namespace="%s", alertname="%s"%s}'}, `, namespaceOf(name), alert, provider)
				}
			}
		}
	}
	text.WriteString("    promql_expr_test:\n")
	for minute, samples := range fires {
		// DrainerBudgetSpent looks back further than a story lasts.
		fmt.Fprintf(&text, "      - {expr: 'group by (namespace, alertname, provider) (ALERTS{alertstate=\"firing\", alertname!=\"DrainerBudgetSpent\"})', eval_time: %dm, exp_samples: [%s]}\n",
			before+minute, samples)
	}
	return text.String()
}

func namespaceOf(story string) string {
	return strings.ReplaceAll(strings.ReplaceAll(story, ",", ""), " ", "-")
}

// The test evaluates the stories with the shipped rules, and sends their alerts through the shipped routes. Each
// alert that wakes an engineer is the only page of some story.
func TestAnIncidentWakesAnEngineerOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here; install Debian's prometheus to see what fires")
	}
	server := startAlertmanager(t)
	rules, err := filepath.Abs("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "stories.yaml")
	if err := os.WriteFile(file, []byte(ruleTest(t, rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("other alerts fire than the stories say: %v\n%s", err, output)
	}
	severities, sleeping := map[string]string{}, map[string]bool{}
	for _, alert := range alerts(t) {
		severities[alert.Alert] = alert.Labels.Severity
		sleeping[alert.Alert] = alert.Labels.Severity == "critical"
	}
	severities[ended] = "critical"
	for name, s := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if pages := server.tell(t, name, s, severities); !slices.Equal(pages, strings.Fields(s.wakes)) {
				t.Errorf("%v wake an engineer, want %q alone", pages, s.wakes)
			}
		})
		delete(sleeping, s.wakes)
	}
	for alert, critical := range sleeping {
		if critical {
			t.Errorf("no story tells whom %s wakes", alert)
		}
	}
}

// tell sends the alerts of a story to Alertmanager step by step, and returns those that wake an engineer. At the
// end it sends one alert more, whose notification shows that no other one is on its way.
func (a *alertmanager) tell(t *testing.T, name string, s story, severities map[string]string) (pages []string) {
	t.Helper()
	namespace, fired := namespaceOf(name), map[string]bool{}
	for _, now := range append(s.steps(t), step{minute: after, fires: []string{ended}}) {
		var posted []postedAlert
		post := func(alert, endsAt string) string {
			alert, provider, _ := strings.Cut(alert, "/")
			if severities[alert] == "" {
				t.Fatalf("no alert is called %s", alert)
			}
			posted = append(posted, postedAlert{map[string]string{
				"alertname": alert, "severity": severities[alert], "namespace": namespace, "job": "drainer", "provider": provider,
			}, endsAt})
			return alert
		}
		for alert := range fired {
			if !slices.Contains(now.fires, alert) {
				post(alert, time.Now().Format(time.RFC3339Nano))
			}
		}
		clear(fired)
		want := map[string][]string{}
		for _, alert := range now.fires {
			fired[alert] = true
			alertname, receiver := post(alert, ""), ""
			if !now.silent[alert] {
				receiver = map[string]string{"critical": "on-call", "warning": "tickets"}[severities[alertname]]
			}
			want[receiver] = append(want[receiver], alertname)
		}
		for _, names := range want {
			slices.Sort(names)
		}
		if err := a.ask(t, http.MethodPost, "/api/v2/alerts", posted, nil); err != nil {
			t.Fatal(err)
		}
		drainertest.Eventually(t, fmt.Sprintf("%s, minute %d: receivers hear %v", name, now.minute, want), func() bool {
			return maps.EqualFunc(a.heard(t, namespace), want, slices.Equal)
		})
		drainertest.Eventually(t, fmt.Sprintf("%s, minute %d: on-call is notified of %v", name, now.minute, want["on-call"]), func() bool {
			pages = a.paged(namespace)
			return !slices.ContainsFunc(want["on-call"], func(alert string) bool { return !slices.Contains(pages, alert) })
		})
	}
	return pages[:len(pages)-1] // without the end
}
