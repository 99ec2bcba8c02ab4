package helm_test

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// A hook that runs before an installation finds none of its objects. A Job that waits for a missing volume ends an
// upgrade without a message.
func TestTheNewConfigIsCheckedBeforeAnythingElseHappens(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		if v.merged()["existingConfigMap"] != nil {
			if _, there := pods(t, v)["validation"]; there {
				t.Errorf("%s: a ConfigMap is checked that may not be there yet", name)
			}
			continue
		}
		job := hook(t, v, "validation")
		var brought *core.ConfigMap
		for _, config := range findAll[core.ConfigMap](t, v) {
			if config.Annotations["helm.sh/hook"] != "" {
				brought = config
			}
		}
		if brought == nil || !maps.Equal(brought.Data, configOf(t, v)) || job.Spec.Template.Spec.Volumes[0].ConfigMap.Name != brought.Name {
			t.Fatalf("%s: another configuration is checked than the daemon's", name)
		}
		before := weight(t, job.Annotations)
		if weight(t, brought.Annotations) >= before {
			t.Errorf("%s: the configuration comes after its check", name)
		}
		for _, other := range findAll[networking.NetworkPolicy](t, v) {
			if other.Annotations["helm.sh/hook"] != "" && other.Spec.PodSelector.MatchLabels[component] != "validation" && weight(t, other.Annotations) <= before {
				t.Errorf("%s: %s comes before the check", name, other.Name)
			}
		}
		if _, migrates := pods(t, v)["migration"]; migrates && weight(t, hook(t, v, "migration").Annotations) <= before {
			t.Errorf("%s: the migration comes before the check", name)
		}
		pod := job.Spec.Template.Spec
		if pod.ServiceAccountName != "" {
			t.Errorf("%s: the Job needs an account that is not there before an installation", name)
		}
		for _, variable := range pod.Containers[0].Env {
			if from := variable.ValueFrom; from != nil && (from.SecretKeyRef.Optional == nil || !*from.SecretKeyRef.Optional) {
				t.Errorf("%s: without the Secret for %s the Job never begins", name, variable.Name)
			}
		}
		for _, volume := range pod.Volumes {
			if volume.Projected != nil && !*volume.Projected.Sources[0].Secret.Optional {
				t.Errorf("%s: without the Secret for %s the Job never begins", name, volume.Name)
			}
		}
	}
	if _, there := pods(t, scenario(t, "minimal").with(t, "validation: {enabled: false}"))["validation"]; there {
		t.Error("it cannot be turned off")
	}
}

func weight(t *testing.T, annotations map[string]string) int {
	t.Helper()
	if annotations["helm.sh/hook"] != "pre-install,pre-upgrade" {
		t.Fatalf("the hooks are %q", annotations["helm.sh/hook"])
	}
	weight, err := strconv.Atoi(annotations["helm.sh/hook-weight"])
	if err != nil {
		t.Fatal(err)
	}
	return weight
}

// The program runs the Job's own command line. A config that it refuses ends the Job at once.
func TestAnUpgradeFailsForAConfigThatTheDaemonRefuses(t *testing.T) {
	t.Parallel()
	for values, said := range map[string]string{
		"{}": "",
		"config: {providers: {billing: {concurency: 3}}}":                                                      "concurency",
		"config: {providers: {billing: {tools: {charge: {idempotency: {class: key_idempotent, ttl: null}}}}}}": "ttl",
		"config: {providers: {billing: {http: {headers: {Authorization: '${env:API_KEY}'}}}}}":                 "API_KEY",
	} {
		v := scenario(t, "minimal").with(t, values)
		job := hook(t, v, "validation")
		output, err := inPod(t, job.Spec.Template.Spec, configOf(t, v)).CombinedOutput()
		var failed *exec.ExitError
		switch {
		case said == "" && err != nil:
			t.Errorf("%v\n%s", err, output)
		case said == "":
		case !errors.As(err, &failed) || !strings.Contains(string(output), said):
			t.Errorf("%s: %v\n%s", values, err, output)
		case !slices.Contains(job.Spec.PodFailurePolicy.Rules[0].OnExitCodes.Values, int32(failed.ExitCode())):
			t.Errorf("%s: the Job tries it again, after the exit code %d", values, failed.ExitCode())
		}
	}
}

func TestHelmTestAsksTheDoctor(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		pod := find[core.Pod](t, v)
		if pod.Annotations["helm.sh/hook"] != "test" || pod.Spec.RestartPolicy != core.RestartPolicyNever {
			t.Errorf("%s: %v, %s", name, pod.Annotations, pod.Spec.RestartPolicy)
		}
		daemon, asked := daemonOf(t, v), pod.Spec.Containers[0]
		if fmt.Sprint(asked.Env) != fmt.Sprint(daemon.Env) {
			t.Errorf("%s: the doctor has %v, the daemon %v", name, asked.Env, daemon.Env)
		}
		if policyOf(t, v, "doctor").Name != policyOf(t, v, "daemon").Name {
			t.Errorf("%s: the doctor goes where the daemon does not", name)
		}
		if config := v.merged()["existingConfigMap"]; config != nil {
			continue
		}
		// The exit code 4 means that the command line is right and that there is no database.
		output, err := inPod(t, pod.Spec, configOf(t, v)).CombinedOutput()
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() != 4 || slices.Contains(asked.Args, "--offline") != (name == "sidecars") {
			t.Errorf("%s: %v: %v\n%s", name, asked.Args, err, output)
		}
	}
}
