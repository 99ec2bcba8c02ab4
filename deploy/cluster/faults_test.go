package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// Both pods are on the node that is drained, so that its drain has to wait for the budget.
func TestADrainedNodeLeavesOnePodAtWorkAndLosesNothing(t *testing.T) {
	r := newRelease(t, "drained")
	t.Cleanup(func() {
		for _, node := range []string{"n1", "n2"} {
			if _, err := run(r.cluster.kubectl(context.Background(), "uncordon", node)); err != nil {
				t.Error(err)
			}
		}
	})
	r.kubectl("cordon", "n1")
	r.upgrade()
	r.startLoad()
	r.underLoad(50)
	r.kubectl("uncordon", "n1")

	var said bytes.Buffer
	drain := r.cluster.kubectl(t.Context(), "drain", "n2", "--timeout=170s")
	drain.Stdout, drain.Stderr = &said, &said
	if err := drain.Run(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	if !strings.Contains(said.String(), "would violate the pod's disruption budget") {
		t.Errorf("the budget held nothing back: %s", said.String())
	}
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	if on := r.kubectl("get", "pods", "--selector", daemons, "--output", "jsonpath={.items[*].spec.nodeName}"); on != "n1 n1" {
		t.Errorf("the pods are on %q", on)
	}
	r.underLoad(50)
	r.audit(0)
}

func TestAPostgresWhosePodIsReplacedIsFoundAgain(t *testing.T) {
	r := newRelease(t, "crashed")
	r.upgrade()
	r.startLoad()
	r.underLoad(50)
	r.kubectl("--namespace", "default", "delete", "pod", "--selector", "app=postgres", "--grace-period=1")
	r.kubectl("--namespace", "default", "rollout", "status", "statefulset/postgres", "--timeout=120s")
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	r.underLoad(50)
	if restarted := r.restarts(); restarted != 0 {
		t.Errorf("%d containers were restarted", restarted)
	}
	r.audit(2 * atOnce)
}

// The provider takes 40 s for the request. A pod has 10 s for requests in flight, and 15 s more.
func TestADispatchThatOutlastsItsPodIsTriedAgainWithItsKey(t *testing.T) {
	r := newRelease(t, "outlasted")
	r.set("config.providers.pay.timeout", "90s")
	r.upgrade()
	var key, worker string
	if err := r.database.QueryRow(t.Context(), `SELECT idempotency_key FROM outbox.enqueue(current_database(), 'step', 'pay/slow', 'order', '{}')`).Scan(&key); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is claimed", func() error {
		return r.database.QueryRow(t.Context(), `SELECT worker_id::text FROM outbox.claim`).Scan(&worker)
	})
	pod := r.pods()[0]
	if !strings.Contains(r.kubectl("logs", pod), worker) {
		pod = r.pods()[1]
	}
	watch := r.cluster.kubectl(t.Context(), "--namespace", r.namespace, "get", "pod", pod, "--watch", "--output", `jsonpath={.status.containerStatuses[0].state.terminated.exitCode}{"\n"}`)
	var codes bytes.Buffer
	watch.Stdout = &codes
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	r.kubectl("delete", "pod", pod)
	_ = watch.Process.Kill()
	_ = watch.Wait() // it was killed
	if ended := strings.Fields(codes.String()); len(ended) == 0 || ended[len(ended)-1] != "0" {
		t.Errorf("the pod ended with %q, want 0: it was killed before it was done", ended)
	}
	r.audit(0)
	ledger, err := dispatchtest.ReadLedger(ledgerFile)
	if err != nil {
		t.Fatal(err)
	}
	if requests := ledger.Audit().Requests[key]; requests < 2 {
		t.Errorf("%d requests", requests)
	}
}

// The kernel kills a daemon that may use no more memory than it has.
func TestADaemonThatIsOutOfMemoryLosesAndDoublesNothing(t *testing.T) {
	r := newRelease(t, "oom")
	r.upgrade()
	r.startLoad()
	r.underLoad(50)
	pod := r.pods()[0]
	cgroup := r.cgroup(pod)
	eventually(t, "the kernel has killed it", func() error {
		// The write fails while usage grows, and after the container is gone.
		usage, _ := os.ReadFile(filepath.Join(cgroup, "memory.usage_in_bytes"))
		limited := os.WriteFile(filepath.Join(cgroup, "memory.limit_in_bytes"), bytes.TrimSpace(usage), 0o644)
		reason := r.kubectl("get", "pod", pod, "--output", "jsonpath={.status.containerStatuses[0].lastState.terminated.reason}")
		if reason != "OOMKilled" {
			return errors.Join(fmt.Errorf("its end was %q", reason), limited)
		}
		return nil
	})
	r.kubectl("rollout", "status", "deployment/drainer", "--timeout=120s")
	r.underLoad(50)
	r.audit(atOnce)
}

// There is no earlier release. So both versions are of this commit, and differ only in the version that they
// report.
func TestTwoVersionsDrainOneDatabaseSideBySide(t *testing.T) {
	r := newRelease(t, "versions")
	r.upgrade()
	r.set("image.tag", "next")
	r.set("migrations.mode", "none")
	r.set("fullnameOverride", "second")
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(asJSON(t, r.values)), 0o600); err != nil {
		t.Fatal(err)
	}
	folder, err := filepath.Abs(chart)
	if err != nil {
		t.Fatal(err)
	}
	r.helm("install", "second", folder, "--values", file, "--wait", "--timeout", "3m")
	r.startLoad()
	r.underLoad(100)
	for _, instance := range []string{"drainer", "second"} {
		log := r.kubectl("logs", "--selector", daemons+",app.kubernetes.io/instance="+instance, "--tail=-1")
		var workers []string
		for _, joined := range regexp.MustCompile(`"msg":"joined","worker":"([^"]+)"`).FindAllStringSubmatch(log, -1) {
			workers = append(workers, joined[1])
		}
		if count(t, r.database, `SELECT count(*) FROM outbox.attempt WHERE outcome = 'completed' AND worker = ANY ($1)`, workers) == 0 {
			t.Errorf("the release %s has completed nothing; its workers are %v", instance, workers)
		}
	}
	r.helm("uninstall", "drainer", "--wait")
	r.underLoad(50)
	r.audit(0)
}

// The definitions are those of the operators' own modules, from the module cache.
func TestWhatTheOperatorsDefineIsAccepted(t *testing.T) {
	r := newRelease(t, "operated")
	for module, pattern := range map[string]string{
		"github.com/kedacore/keda/v2@v2.17.2":                        "config/crd/bases/keda.sh_*.yaml",
		"github.com/prometheus-operator/prometheus-operator@v0.91.0": "example/prometheus-operator-crd/monitoring.coreos.com_p*.yaml",
	} {
		found, err := run(exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module))
		if err != nil {
			running.skipped.Store(true)
			t.Skipf("the module cannot be had: %v", err)
		}
		folder := strings.Split(strings.Split(string(found), `"Dir": "`)[1], `"`)[0]
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s in %s: %v", pattern, folder, err)
		}
		for _, file := range files {
			r.kubectl("apply", "--server-side", "--filename", file)
			t.Cleanup(func() {
				if _, err := run(r.cluster.kubectl(context.Background(), "delete", "--filename", file)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	r.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	for path, value := range map[string]any{
		"podMonitor.enabled": true, "prometheusRule.enabled": true, "dashboards.enabled": true, "service.enabled": true,
		"autoscaling": object{"enabled": true, "prometheus": object{"serverAddress": "http://prometheus.monitoring:9090"}},
	} {
		r.set(path, value)
	}
	for _, trigger := range []string{"prometheus", "postgresql"} {
		r.set("autoscaling.trigger", trigger)
		r.upgrade()
		output, err := run(r.cluster.inside(t.Context(), 1, filepath.Join(r.cluster.tools, "helm"), "--namespace", r.namespace, "get", "manifest", "drainer"))
		if err != nil {
			t.Fatal(err)
		}
		// An installation drops an unknown field silently. Here it is an error.
		manifest := string(output)
		if err := r.check(manifest); err != nil {
			t.Error(err)
		}
		if err := r.check(strings.Replace(manifest, "pollingInterval:", "pollingIntervals:", 1)); err == nil || !strings.Contains(err.Error(), "pollingIntervals") {
			t.Errorf("a misspelt field is not found: %v", err)
		}
		r.kubectl("get", "scaledobject/drainer", "podmonitor/drainer", "prometheusrule/drainer")
	}
	r.helm("uninstall", "drainer", "--wait")
}

// check returns an error if the server does not know every field.
func (r *release) check(manifest string) error {
	command := r.cluster.kubectl(r.t.Context(), "apply", "--namespace", r.namespace, "--dry-run=server", "--validate=strict", "--filename", "-")
	command.Stdin = strings.NewReader(manifest)
	_, err := run(command)
	return err
}
