package dashboards_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/drainertest"
)

// alertmanager is a real one, with the routes and inhibition rules that people get.
type alertmanager struct{ url string }

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
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it cannot say which port it was given
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command := exec.CommandContext(t.Context(), program, "--config.file=alertmanager.yaml", "--storage.path="+t.TempDir(),
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
	server := &alertmanager{"http://" + address}
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
}

// heard is what each receiver hears of one installation: names of alerts, sorted.
func (a *alertmanager) heard(t *testing.T, namespace string) (by map[string][]string, silent int) {
	t.Helper()
	var listed []struct {
		postedAlert
		Status    struct{ State string }
		Receivers []struct{ Name string }
	}
	if err := a.ask(t, http.MethodGet, `/api/v2/alerts?filter=namespace%3D%22`+namespace+`%22`, nil, &listed); err != nil {
		t.Fatal(err)
	}
	by = map[string][]string{}
	for _, alert := range listed {
		if alert.Status.State == "suppressed" {
			silent++
			continue
		}
		for _, receiver := range alert.Receivers {
			by[receiver.Name] = append(by[receiver.Name], alert.Labels["alertname"])
		}
	}
	for _, names := range by {
		slices.Sort(names)
	}
	return by, silent
}

// What fires together when something breaks, and the one page that it is.
func TestAnIncidentWakesAnEngineerOnce(t *testing.T) {
	t.Parallel()
	severities := map[string]string{}
	for _, alert := range alerts(t) {
		severities[alert.Alert] = alert.Labels.Severity
	}
	server := startAlertmanager(t)
	for story, test := range map[string]struct {
		fire, wakes, tickets string // names, with the provider where an alert has one
	}{
		"every replica is gone": {
			fire:  "DrainerDown DrainerReplicaDown DrainerBatchesFailing DrainerDeliveriesLate DrainerOldestDueTooOld/stripe",
			wakes: "DrainerDown",
		},
		"Postgres is away": {
			fire: "DrainerBatchesFailing DrainerNotCounting DrainerLaneStalled/stripe DrainerLaneStalled/slack DrainerStalled/stripe " +
				"DrainerDeliveriesLate DrainerJobsStuck DrainerIncidentUnpaged DrainerConfigReloadFailed",
			wakes: "DrainerBatchesFailing", tickets: "DrainerConfigReloadFailed", // which another outage does not explain
		},
		"dispatches to a provider hang": {
			fire:  "DrainerStalled/stripe DrainerDeliveriesLate DrainerBacklog DrainerOldestDueTooOld/stripe DrainerBudgetSpent",
			wakes: "DrainerStalled",
		},
		"a provider is away, and will forget keys": {
			fire:  "DrainerKeyTTLNear/stripe DrainerCircuitOpen/stripe DrainerOldestDueTooOld/stripe DrainerCircuitOpen/slack",
			wakes: "DrainerKeyTTLNear", tickets: "DrainerCircuitOpen", // of the other provider
		},
		"the pager is away while an effect is in doubt": {
			fire:  "DrainerIncidentUnpaged DrainerPagingFailing DrainerOutcomeUnknown DrainerIncidentUnacknowledged",
			wakes: "DrainerIncidentUnpaged",
		},
		"a provider is away": {
			fire:    "DrainerCircuitOpen/stripe DrainerOldestDueTooOld/stripe DrainerBacklog",
			tickets: "DrainerBacklog DrainerCircuitOpen",
		},
	} {
		namespace := strings.ReplaceAll(strings.ReplaceAll(story, " ", "-"), ",", "")
		var posted []postedAlert
		for _, fires := range strings.Fields(test.fire) {
			name, provider, _ := strings.Cut(fires, "/")
			if severities[name] == "" {
				t.Fatalf("no alert is called %s", name)
			}
			labels := map[string]string{"alertname": name, "severity": severities[name], "namespace": namespace, "job": "drainer"}
			if provider != "" {
				labels["provider"] = provider
			}
			posted = append(posted, postedAlert{labels})
		}
		if err := server.ask(t, http.MethodPost, "/api/v2/alerts", posted, nil); err != nil {
			t.Fatal(err)
		}
		var by map[string][]string
		drainertest.Eventually(t, story+": "+test.wakes+" wakes, and "+test.tickets+" are tickets", func() bool {
			var silent int
			by, silent = server.heard(t, namespace)
			return slices.Equal(by["on-call"], strings.Fields(test.wakes)) && slices.Equal(by["tickets"], strings.Fields(test.tickets)) &&
				silent+len(by["on-call"])+len(by["tickets"]) == len(posted)
		})
		t.Logf("%s: %d alerts fire; woken by %v; tickets %v", story, len(posted), by["on-call"], by["tickets"])
	}
}
