package helm_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
)

func TestNoManifestIsASecretOrHoldsOne(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		for kind, pod := range pods(t, v) {
			for _, container := range containers(pod.Spec) {
				for _, variable := range container.Env {
					if variable.Name == "DATABASE_URL" { // it names a file, which another test follows to the Secret
						continue
					}
					if variable.Name == "DRAINER_LISTEN" || variable.Name == "GOMAXPROCS" { // an address, and the scenario's extraEnv
						continue
					}
					if variable.Value != "" || variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef == nil {
						t.Errorf("%s: %s: container %s has %s from somewhere else than a Secret", name, kind, container.Name, variable.Name)
					}
				}
			}
		}
		for _, manifest := range manifests(t, v) {
			if d := describe(t, manifest); d.Kind == "Secret" {
				t.Errorf("%s: the chart makes %s", name, d)
			}
			if strings.Contains(manifest, "postgres://") {
				t.Errorf("%s: %s holds a connection URL", name, describe(t, manifest))
			}
		}
	}
}

// A variable would keep the password that the pod began with.
func TestEachDatabaseURLIsAFileOfASecret(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for name, v := range scenarios(t) {
		for kind, pod := range pods(t, v) {
			for _, container := range containers(pod.Spec) {
				given := slices.Clone(container.Args)
				for _, variable := range container.Env {
					given = append(given, variable.Name+"="+variable.Value)
				}
				for _, text := range given {
					what, value, _ := strings.Cut(text, "=")
					if what != "DATABASE_URL" && what != "--viewer-database" {
						continue
					}
					mount := slices.IndexFunc(container.VolumeMounts, func(mount core.VolumeMount) bool { return value == "${file:"+mount.MountPath+"/url}" })
					if mount < 0 || !container.VolumeMounts[mount].ReadOnly || container.VolumeMounts[mount].SubPath != "" {
						t.Errorf("%s: %s: %s %s is in none of %+v", name, kind, container.Name, text, container.VolumeMounts)
						continue
					}
					volume := slices.IndexFunc(pod.Spec.Volumes, func(volume core.Volume) bool { return volume.Name == container.VolumeMounts[mount].Name })
					secret := pod.Spec.Volumes[volume].Secret
					if secret == nil || len(secret.Items) != 1 || secret.Items[0].Path != "url" || *secret.DefaultMode&0o007 != 0 {
						t.Fatalf("%s: %s: the volume is %+v", name, kind, pod.Spec.Volumes[volume])
					}
					seen[name+" "+container.Name+" "+what+" "+secret.SecretName+"/"+secret.Items[0].Key] = true
				}
			}
		}
	}
	for _, want := range []string{
		"secrets drainer DATABASE_URL outbox/daemon-url", "secrets doctor DATABASE_URL outbox/daemon-url", "secrets validate DATABASE_URL outbox/daemon-url",
		"secrets migrate DATABASE_URL outbox/owner-url", "sidecars migrate DATABASE_URL outbox-owner/url",
		"console console DATABASE_URL outbox/console-url", "console console --viewer-database outbox/viewer-url",
	} {
		if !seen[want] {
			t.Errorf("want %s, among %v", want, slices.Sorted(maps.Keys(seen)))
		}
	}
}

// The program itself reads the file. Without it the program refuses the URL before it connects.
func TestEachPodThatConnectsHasTheAuthoritysFile(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"secrets": "outbox-ca/ca.crt", "sidecars": "outbox-ca/root.pem", "console": "database-ca/bundle.pem"} {
		v := scenario(t, name)
		connects := 0
		for kind, pod := range pods(t, v) {
			for _, container := range containers(pod.Spec) {
				if !slices.ContainsFunc(container.Env, func(variable core.EnvVar) bool { return variable.Name == "DATABASE_URL" }) {
					continue
				}
				if kind != "validation" && container.Name != "drainer" { // the doctor has the same files as the daemon, which would wait for the database
					alone := pod.Spec
					alone.Containers = []core.Container{container}
					if output, err := inPod(t, alone, configOf(t, v)).CombinedOutput(); err == nil || !strings.Contains(string(output), "127.0.0.1:1") {
						t.Errorf("%s: %s: container %s: %v\n%s", name, kind, container.Name, err, output)
					}
					connects++
				}
				volumes := slices.DeleteFunc(slices.Clone(pod.Spec.Volumes), func(volume core.Volume) bool { return volume.Name != "database-ca" })
				if len(volumes) != 1 {
					t.Fatalf("%s: %s: the volumes are %+v", name, kind, pod.Spec.Volumes)
				}
				got, optional := "", (*bool)(nil)
				if from := volumes[0].Secret; from != nil {
					got, optional = from.SecretName+"/"+from.Items[0].Key, from.Optional
				} else {
					got, optional = volumes[0].ConfigMap.Name+"/"+volumes[0].ConfigMap.Items[0].Key, volumes[0].ConfigMap.Optional
				}
				if got != want || (optional != nil) != (kind == "validation") {
					t.Errorf("%s: %s: the file comes from %s, want %s; may be missing: %t", name, kind, got, want, optional != nil)
				}
			}
		}
		if connects < 2 {
			t.Errorf("%s: only %d containers connect", name, connects)
		}
	}
}

func TestSecretsArriveAsVariablesAndAsFiles(t *testing.T) {
	t.Parallel()
	v := scenario(t, "secrets")
	daemon := daemonOf(t, v)
	stripe := slices.IndexFunc(daemon.Env, func(variable core.EnvVar) bool { return variable.Name == "STRIPE_KEY" })
	if stripe < 0 || daemon.Env[stripe].ValueFrom.SecretKeyRef.Name != "stripe" {
		t.Errorf("the variables are %+v", daemon.Env)
	}
	mount := slices.IndexFunc(daemon.VolumeMounts, func(mount core.VolumeMount) bool { return mount.MountPath == "/run/secrets" })
	if mount < 0 || !daemon.VolumeMounts[mount].ReadOnly {
		t.Fatalf("the mounts are %+v", daemon.VolumeMounts)
	}
	pod := daemons(t, v).Spec.Template.Spec
	volume := slices.IndexFunc(pod.Volumes, func(volume core.Volume) bool { return volume.Name == daemon.VolumeMounts[mount].Name })
	projected := pod.Volumes[volume].Projected
	if *projected.DefaultMode&0o007 != 0 {
		t.Errorf("everybody may read the files: %o", *projected.DefaultMode)
	}
	files := map[string]string{}
	for _, source := range projected.Sources {
		for _, item := range source.Secret.Items {
			files[item.Path] = source.Secret.Name + "/" + item.Key
		}
	}
	for path, from := range map[string]string{"pagerduty": "pager/routing-key", "billing.crt": "billing-client/tls.crt", "billing.key": "billing-client/tls.key"} {
		if files[path] != from {
			t.Errorf("/run/secrets/%s comes from %q, want %s", path, files[path], from)
		}
	}
}
