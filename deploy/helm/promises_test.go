package helm_test

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const component = "app.kubernetes.io/component"

// pods returns the templates of all pods, by their component.
func pods(t *testing.T, v values) map[string]core.PodTemplateSpec {
	t.Helper()
	all := map[string]core.PodTemplateSpec{}
	for _, deployment := range findAll[apps.Deployment](t, v) {
		all[deployment.Spec.Template.Labels[component]] = deployment.Spec.Template
	}
	for _, job := range findAll[batch.Job](t, v) {
		all[job.Spec.Template.Labels[component]] = job.Spec.Template
	}
	for _, pod := range findAll[core.Pod](t, v) {
		all[pod.Labels[component]] = core.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
	}
	return all
}

// daemons returns the Deployment of the daemons.
func daemons(t *testing.T, v values) *apps.Deployment {
	t.Helper()
	for _, deployment := range findAll[apps.Deployment](t, v) {
		if deployment.Spec.Template.Labels[component] == "daemon" {
			return deployment
		}
	}
	t.Fatal("nothing drains")
	return nil
}

func containers(pod core.PodSpec) []core.Container {
	return slices.Concat(pod.InitContainers, pod.Containers)
}

func TestNothingRunsAsRootOrCanBecomeIt(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		for kind, pod := range pods(t, v) {
			whole := pod.Spec.SecurityContext
			if whole == nil || !*whole.RunAsNonRoot || *whole.RunAsUser == 0 || whole.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s: the pod's security context is %+v", name, kind, whole)
			}
			if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
				t.Errorf("%s: %s: it gets a token", name, kind)
			}
			for _, container := range containers(pod.Spec) {
				confined := container.SecurityContext
				if confined == nil || !*confined.RunAsNonRoot || !*confined.ReadOnlyRootFilesystem || *confined.AllowPrivilegeEscalation ||
					!slices.Equal(confined.Capabilities.Drop, []core.Capability{"ALL"}) || len(confined.Capabilities.Add) > 0 {
					t.Errorf("%s: %s: container %s has the security context %+v", name, kind, container.Name, confined)
				}
			}
		}
	}
}

func TestAPlatformMayChooseTheUser(t *testing.T) {
	t.Parallel()
	v := scenario(t, "minimal").with(t, "podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}")
	chosen := daemons(t, v).Spec.Template.Spec.SecurityContext
	if chosen.RunAsUser != nil || chosen.FSGroup != nil || !*chosen.RunAsNonRoot {
		t.Errorf("the pod's security context is %+v", chosen)
	}
}

func TestSelectorsFindTheDaemonsAndNobodyElse(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		all := pods(t, v)
		deployment := daemons(t, v)
		selectors := map[string]*meta.LabelSelector{"Deployment": deployment.Spec.Selector}
		for _, constraint := range deployment.Spec.Template.Spec.TopologySpreadConstraints {
			selectors["spread over "+constraint.TopologyKey] = constraint.LabelSelector
		}
		for _, budget := range findAll[policy.PodDisruptionBudget](t, v) {
			selectors["PodDisruptionBudget"] = budget.Spec.Selector
		}
		for _, monitor := range findAll[monitoring.PodMonitor](t, v) {
			selectors["PodMonitor"] = &monitor.Spec.Selector
		}
		for _, service := range findAll[core.Service](t, v) {
			if service.Name == deployment.Name {
				selectors["Service"] = &meta.LabelSelector{MatchLabels: service.Spec.Selector}
			}
		}
		for what, selector := range selectors {
			for component, pod := range all {
				if matches(t, selector, pod.Labels) != (component == "daemon") {
					t.Errorf("%s: %s does not select the daemons' pods alone", name, what)
				}
			}
		}
		if len(selectors) < 3 {
			t.Errorf("%s: only %v select pods", name, slices.Sorted(maps.Keys(selectors)))
		}
	}
}

func matches(t *testing.T, selector *meta.LabelSelector, pod map[string]string) bool {
	t.Helper()
	parsed, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return !parsed.Empty() && parsed.Matches(labels.Set(pod))
}

func TestTwoDrainBeforeAnybodyAsksForMore(t *testing.T) {
	t.Parallel()
	deployment := daemons(t, scenario(t, "minimal"))
	if *deployment.Spec.Replicas != 2 {
		t.Errorf("%d pods", *deployment.Spec.Replicas)
	}
	if budget := find[policy.PodDisruptionBudget](t, scenario(t, "minimal")); budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("the budget lets %s go at once", budget.Spec.MaxUnavailable)
	}
	if scaled := daemons(t, scenario(t, "everything")); scaled.Spec.Replicas != nil {
		t.Errorf("an upgrade would undo the scaling, to %d pods", *scaled.Spec.Replicas)
	}
}

func TestProbesAskTheRightQuestions(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		daemon := daemonOf(t, v)
		for probe, path := range map[*core.Probe]string{
			daemon.StartupProbe: "/livez", daemon.LivenessProbe: "/livez", daemon.ReadinessProbe: "/readyz",
		} {
			if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.String() != "metrics" {
				t.Errorf("%s: want a probe of %s, got %+v", name, path, probe)
			}
		}
		if len(daemon.Ports) != 1 || daemon.Ports[0].Name != "metrics" {
			t.Errorf("%s: ports %+v", name, daemon.Ports)
		}
	}
}

func daemonOf(t *testing.T, v values) core.Container {
	t.Helper()
	pod := daemons(t, v).Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.Containers[0].Name != "drainer" {
		t.Fatalf("the containers are %+v", pod.Containers)
	}
	return pod.Containers[0]
}

func TestEveryMountHasItsVolume(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		for kind, pod := range pods(t, v) {
			volumes := map[string]bool{}
			for _, volume := range pod.Spec.Volumes {
				volumes[volume.Name] = true
			}
			for _, container := range containers(pod.Spec) {
				for _, mount := range container.VolumeMounts {
					if !volumes[mount.Name] {
						t.Errorf("%s: %s: container %s mounts %s, which is no volume", name, kind, container.Name, mount.Name)
					}
					if mount.Name == "config" && mount.SubPath != "" {
						t.Errorf("%s: a config that is mounted as one file never changes", name)
					}
				}
			}
		}
	}
}

func TestSidecarsSurroundTheDaemonAndNoneSeesTheSocketOfAnother(t *testing.T) {
	t.Parallel()
	pod := daemons(t, scenario(t, "sidecars")).Spec.Template.Spec
	var names []string
	for _, container := range pod.InitContainers {
		names = append(names, container.Name)
	}
	if !slices.Equal(names, []string{"migrate", "tickets", "fax"}) {
		t.Fatalf("the init containers are %v, want the migration before the sidecars", names)
	}
	if pod.InitContainers[0].RestartPolicy != nil {
		t.Error("a migration that never ends holds up the daemon")
	}
	socketsOf := func(container core.Container) (folders []string) {
		for _, mount := range container.VolumeMounts {
			if strings.HasPrefix(mount.MountPath, "/run/drainer") {
				folders = append(folders, mount.Name+" at "+mount.MountPath)
			}
		}
		return folders
	}
	for i, want := range [][]string{{"sockets-tickets at /run/drainer/tickets"}, {"sockets-fax at /run/drainer/fax"}} {
		if got := socketsOf(pod.InitContainers[1+i]); !slices.Equal(got, want) {
			t.Errorf("%s sees %v, want %v alone", pod.InitContainers[1+i].Name, got, want)
		}
	}
	want := []string{"sockets-tickets at /run/drainer/tickets", "sockets-fax at /run/drainer/fax"}
	if got := socketsOf(pod.Containers[0]); !slices.Equal(got, want) {
		t.Errorf("the daemon sees %v, want %v", got, want)
	}
	for _, sidecar := range pod.InitContainers[1:] {
		if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != core.ContainerRestartPolicyAlways {
			t.Errorf("%s is no sidecar: the daemon would wait for its end", sidecar.Name)
		}
	}
}

func TestMigrationsRunBeforeWhateverNeedsThem(t *testing.T) {
	t.Parallel()
	job := hook(t, scenario(t, "minimal"), "migration")
	if job.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" {
		t.Errorf("the Job's hooks are %q", job.Annotations["helm.sh/hook"])
	}
	migrate := job.Spec.Template.Spec.Containers[0]
	if !slices.Equal(migrate.Args, []string{"migrate", "up"}) || job.Spec.Template.Spec.ServiceAccountName != "" {
		t.Error("the Job needs what is not there before an installation")
	}
	if _, there := pods(t, scenario(t, "sidecars"))["migration"]; there {
		t.Error("mode init has a Job as well")
	}
	if pod := daemons(t, scenario(t, "scaled-by-postgres")).Spec.Template.Spec; len(pod.InitContainers) > 0 {
		t.Error("mode none migrates")
	}

	// The exit code 4 means that it has its login and that there is no database.
	output, err := inPod(t, job.Spec.Template.Spec, nil).CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 4 || !strings.Contains(string(output), "127.0.0.1:1") {
		t.Errorf("the migration's command line: %v\n%s", err, output)
	}
}

// policyOf returns the one policy that selects these pods.
func policyOf(t *testing.T, v values, component string) *networking.NetworkPolicy {
	t.Helper()
	var all []*networking.NetworkPolicy
	for _, network := range findAll[networking.NetworkPolicy](t, v) {
		if matches(t, &network.Spec.PodSelector, pods(t, v)[component].Labels) {
			all = append(all, network)
		}
	}
	if len(all) != 1 {
		t.Fatalf("%d policies select the %s", len(all), component)
	}
	return all[0]
}

func egressPorts(network *networking.NetworkPolicy) (ports []string) {
	for _, rule := range network.Spec.Egress {
		for _, port := range rule.Ports {
			ports = append(ports, port.Port.String())
		}
	}
	return ports
}

// Where all traffic is denied, a migration without a policy of its own would hang.
func TestTheMigrationMayReachPostgresAndNothingElse(t *testing.T) {
	t.Parallel()
	v := scenario(t, "everything")
	job, network := hook(t, v, "migration"), policyOf(t, v, "migration")
	if network.Annotations["helm.sh/hook"] != job.Annotations["helm.sh/hook"] || network.Annotations["helm.sh/hook-weight"] >= "0" {
		t.Errorf("the policy comes later than the Job: %v", network.Annotations)
	}
	if ports := egressPorts(network); !slices.Equal(ports, []string{"53", "53", "6432"}) || len(network.Spec.Ingress) > 0 {
		t.Errorf("the migration may reach ports %v, and be reached by %v", ports, network.Spec.Ingress)
	}
}

// The check reads all secrets of the daemon, and needs no network.
func TestTheCheckOfTheConfigReachesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"everything", "console"} {
		v := scenario(t, name)
		job, network := hook(t, v, "validation"), policyOf(t, v, "validation")
		if weight(t, network.Annotations) >= weight(t, job.Annotations) {
			t.Errorf("%s: the policy comes later than the Job: %v", name, network.Annotations)
		}
		if spec := network.Spec; len(spec.PolicyTypes) != 2 || len(spec.Ingress) > 0 || len(spec.Egress) > 0 {
			t.Errorf("%s: the policy of the check is %+v", name, spec)
		}
	}
}

// hook returns the Job of this component.
func hook(t *testing.T, v values, of string) *batch.Job {
	t.Helper()
	for _, job := range findAll[batch.Job](t, v) {
		if job.Spec.Template.Labels[component] == of {
			return job
		}
	}
	t.Fatalf("there is no Job for the %s", of)
	return nil
}

func TestTheDaemonMayReachPostgresDNSAndProviders(t *testing.T) {
	t.Parallel()
	network := policyOf(t, scenario(t, "everything"), "daemon")
	if len(network.Spec.PolicyTypes) != 2 || len(network.Spec.Ingress) != 1 || network.Spec.Ingress[0].Ports[0].Port.String() != "metrics" {
		t.Errorf("who may come in: %+v", network.Spec)
	}
	for _, rule := range network.Spec.Egress {
		if len(rule.To) == 0 || len(rule.Ports) == 0 {
			t.Errorf("it may go anywhere: %+v", rule)
		}
	}
}

// A policy cannot match the names of providers and of Postgres, so a default for the way out could only cut them
// off.
func TestOnlyTheWayInIsClosedByDefault(t *testing.T) {
	t.Parallel()
	for _, component := range []string{"daemon", "migration", "console", "doctor"} {
		spec := policyOf(t, scenario(t, "console"), component).Spec
		if !slices.Equal(spec.PolicyTypes, []networking.PolicyType{networking.PolicyTypeIngress}) || len(spec.Egress) > 0 {
			t.Errorf("the policy of the %s is %+v", component, spec)
		}
	}
	if all := findAll[networking.NetworkPolicy](t, scenario(t, "minimal").with(t, "networkPolicy: {enabled: false}")); len(all) > 0 {
		t.Errorf("there are %d policies though none is wanted", len(all))
	}
}

func TestScalingNeverEndsAtNothing(t *testing.T) {
	t.Parallel()
	scaled := find[scaledObject](t, scenario(t, "everything"))
	if scaled.Spec.MinReplicaCount < 1 || scaled.Spec.ScaleTargetRef.Name != daemons(t, scenario(t, "everything")).Name {
		t.Errorf("it scales %+v", scaled.Spec)
	}
	if trigger := scaled.Spec.Triggers[0]; trigger.Type != "prometheus" || trigger.Metadata["threshold"] != "1000" || trigger.Metadata["ignoreNullValues"] != "false" {
		t.Errorf("the trigger is %+v", trigger)
	}
	for fullname, pods := range map[string]string{"": "shop-outbox-5d8f9c7b64-wxyz", "a.b": "a.b-5d8f9c7b64-wxyz", strings.Repeat("n", 50): strings.Repeat("n", 50) + "-5d8f9c7wxyz"} {
		named := find[scaledObject](t, scenario(t, "everything").with(t, "fullnameOverride: '"+fullname+"'"))
		t.Run("counts what more pods of "+named.Name+" would send", func(t *testing.T) { evaluate(t, named.Spec.Triggers[0].Metadata["query"], pods) })
	}
	if fallback := scaled.Spec.Fallback; fallback.FailureThreshold != 3 || fallback.Replicas != 6 || fallback.Behavior != "currentReplicasIfHigher" {
		t.Errorf("without an answer: %+v", fallback)
	}
	if fallback := find[scaledObject](t, scenario(t, "scaled-by-postgres")).Spec.Fallback; fallback.Replicas != 2 {
		t.Errorf("without an answer: %+v", fallback)
	}
	asking := find[scaledObject](t, scenario(t, "scaled-by-postgres")).Spec.Triggers[0]
	login := find[triggerAuthentication](t, scenario(t, "scaled-by-postgres"))
	if asking.AuthenticationRef == nil || asking.AuthenticationRef.Name != login.Name || login.Spec.SecretTargetRef[0].Name != "keda" {
		t.Errorf("the trigger %+v logs in by %+v", asking, login.Spec)
	}
}

// evaluate checks the result of a query for two pods of the release. Their names are ours with an "a" or "b" at the
// end. The query must count only the due rows of the healthy provider.
func evaluate(t *testing.T, query, ours string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here; install Debian's prometheus to evaluate the query")
	}
	series := func(pods, provider, state string, due, paused int) (text string) {
		is := func(metric, labels string, value int) {
			text += fmt.Sprintf("      - {series: '%s{namespace=\"agents\", provider=%q, %s}', values: '%d'}\n", metric, provider, labels, value)
		}
		is("drainer_outbox_due_rows", fmt.Sprintf(`pod="%sa"`, pods), due) // only one pod counts rows
		for _, pod := range []string{pods + "a", pods + "b"} {
			is("drainer_provider_paused", fmt.Sprintf("pod=%q", pod), paused)
			for _, s := range []string{"closed", "open", "half_open"} {
				is("drainer_circuit_breaker_state", fmt.Sprintf("pod=%q, state=%q", pod, s), map[bool]int{true: 1}[s == state])
			}
		}
		return text
	}
	held := series(ours, "paused", "closed", 100, 1) + series(ours, "broken", "open", 1000, 0) + series(ours, "probed", "half_open", 10000, 0) +
		series(ours, "unconfigured", "closed", 100000, 0)
	others := ""
	for _, name := range []string{"another", release + "-outbox-eu", "a.b-2", "axb", strings.Repeat("n", 50) + "-eu"} {
		others += series(name+"-5d8f9c7b64-wxyz", "healthy", "closed", 1000000, 0)
	}
	test := func(input, want string) string {
		return fmt.Sprintf("  - input_series:\n%s    promql_expr_test:\n      - {expr: '%s', eval_time: 0, exp_samples: [%s]}\n", input, query, want)
	}
	file := filepath.Join(t.TempDir(), "query.yaml")
	write(t, file, "tests:\n"+test(others+held+series(ours, "healthy", "closed", 7, 0), "{value: 7, labels: '{}'}")+test(others+held, "{value: 0, labels: '{}'}")+
		test(others, ""))
	if output, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestRulesAndDashboardsArriveAsTheyAre(t *testing.T) {
	t.Parallel()
	var names []string
	for _, group := range find[monitoring.PrometheusRule](t, scenario(t, "everything")).Spec.Groups {
		names = append(names, group.Name)
		if group.Name == "test" && group.Rules[0].Expr.String() != "sum(up) # {{ $value }}" {
			t.Errorf("a rule became %q", group.Rules[0].Expr.String())
		}
	}
	if !slices.Contains(names, "test") || !slices.Contains(names, "ours") {
		t.Errorf("the groups are %v", names)
	}
	for _, config := range findAll[core.ConfigMap](t, scenario(t, "everything")) {
		if dashboard, there := config.Data["test.json"]; there {
			if dashboard != `{"title": "{{ test }}"}` || config.Labels["grafana_dashboard"] != "1" {
				t.Errorf("the dashboard became %q with %v", dashboard, config.Labels)
			}
			return
		}
	}
	t.Error("there is no dashboard")
}

func TestNamesStayWithinWhatKubernetesTakes(t *testing.T) {
	t.Parallel()
	v := scenario(t, "everything").with(t, "fullnameOverride: "+strings.Repeat("long", 15))
	for _, manifest := range manifests(t, v) {
		if d := describe(t, manifest); len(d.Metadata.Name) > 63 {
			t.Errorf("%s has %d characters", d, len(d.Metadata.Name))
		}
	}
}
