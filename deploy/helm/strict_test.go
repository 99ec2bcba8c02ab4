package helm_test

import (
	"fmt"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// scaledObject and triggerAuthentication are the part of KEDA's types that the chart uses. KEDA's module needs a
// controller's whole framework.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		PollingInterval int32 `json:"pollingInterval"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		Fallback        struct {
			FailureThreshold int32  `json:"failureThreshold"`
			Replicas         int32  `json:"replicas"`
			Behavior         string `json:"behavior"`
		} `json:"fallback"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type              string            `json:"type"`
			Metadata          map[string]string `json:"metadata"`
			AuthenticationRef *struct {
				Name string `json:"name"`
			} `json:"authenticationRef"`
		} `json:"triggers"`
	} `json:"spec"`
}

type triggerAuthentication struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		SecretTargetRef []struct {
			Parameter string `json:"parameter"`
			Name      string `json:"name"`
			Key       string `json:"key"`
		} `json:"secretTargetRef"`
	} `json:"spec"`
}

func newDecoder() (runtime.Decoder, error) {
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoring.AddToScheme} {
		if err := add(known); err != nil {
			return nil, err
		}
	}
	return serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer(), nil
}

// decode reads a manifest as a strict Kubernetes would: an unknown field, a repeated one or a value of another type
// is an error.
func decode(manifest string) (any, error) {
	var kind meta.TypeMeta
	if err := yaml.Unmarshal([]byte(manifest), &kind); err != nil {
		return nil, err
	}
	switch kind.Kind {
	case "ScaledObject":
		return strictly[scaledObject](manifest)
	case "TriggerAuthentication":
		return strictly[triggerAuthentication](manifest)
	}
	decoder, err := newDecoder()
	if err != nil {
		return nil, err
	}
	object, _, err := decoder.Decode([]byte(manifest), nil, nil)
	return object, err
}

func strictly[T any](manifest string) (*T, error) {
	into := new(T)
	return into, yaml.UnmarshalStrict([]byte(manifest), into)
}

// find decodes the one manifest of a type with this suffix to the release's name.
func find[T any](t *testing.T, v values) *T {
	t.Helper()
	all := findAll[T](t, v)
	if len(all) != 1 {
		t.Fatalf("there are %d of %T", len(all), *new(T))
	}
	return all[0]
}

func findAll[T any](t *testing.T, v values) (all []*T) {
	t.Helper()
	for _, manifest := range manifests(t, v) {
		object, err := decode(manifest)
		if err != nil {
			t.Fatalf("%s: %v", describe(t, manifest), err)
		}
		if found, ok := object.(*T); ok {
			all = append(all, found)
		}
	}
	return all
}

func TestEveryManifestIsWhatKubernetesReads(t *testing.T) {
	t.Parallel()
	for name, v := range scenarios(t) {
		for _, manifest := range manifests(t, v) {
			if _, err := decode(manifest); err != nil {
				t.Errorf("%s: %s: %v\n%s", name, describe(t, manifest), err, manifest)
			}
		}
	}
}

// The test above finds mistakes only if this test passes.
func TestAMisspeltFieldIsFoundWhereverItIs(t *testing.T) {
	t.Parallel()
	for kind, misspelling := range map[string][2]string{
		"Deployment":            {"readOnlyRootFilesystem:", "readonlyRootFilesystem:"},
		"Job":                   {"backoffLimit:", "backOffLimit:"},
		"Pod":                   {"restartPolicy:", "restartsPolicy:"},
		"PodDisruptionBudget":   {"maxUnavailable:", "maxUnavaiable:"},
		"ConfigMap":             {"data:", "content:"},
		"ServiceAccount":        {"automountServiceAccountToken:", "automountToken:"},
		"Service":               {"publishNotReadyAddresses:", "publishNotReady:"},
		"NetworkPolicy":         {"policyTypes:", "policyType:"},
		"Ingress":               {"ingressClassName:", "ingressClass:"},
		"PodMonitor":            {"podMetricsEndpoints:", "podMetricEndpoints:"},
		"PrometheusRule":        {"expr:", "expression:"},
		"ScaledObject":          {"minReplicaCount:", "minReplicas:"},
		"TriggerAuthentication": {"parameter:", "param:"},
	} {
		tried := false
		for _, name := range []string{"everything", "minimal", "scaled-by-postgres", "console"} {
			for _, manifest := range manifests(t, scenario(t, name)) {
				if describe(t, manifest).Kind != kind || !strings.Contains(manifest, misspelling[0]) {
					continue
				}
				tried = true
				misspelt := strings.Replace(manifest, misspelling[0], misspelling[1], 1)
				if _, err := decode(misspelt); err == nil {
					t.Errorf("%s: %s instead of %s is not found", kind, misspelling[1], misspelling[0])
				}
			}
		}
		if !tried {
			t.Errorf("no values make a %s", kind)
		}
	}
}

func TestAMisspeltFieldInATemplateIsFound(t *testing.T) {
	t.Parallel()
	chart := loadChart(t)
	for _, template := range chart.Templates {
		if template.Name == "templates/deployment.yaml" {
			template.Data = []byte(strings.Replace(string(template.Data), "terminationGracePeriodSeconds:", "terminationGracePeriod:", 1))
		}
	}
	rendered, err := render(t, chart, scenario(t, "minimal"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode(rendered["drainer/templates/deployment.yaml"]); err == nil || !strings.Contains(fmt.Sprint(err), "terminationGracePeriod") {
		t.Errorf("it is read as if nothing were wrong: %v", err)
	}
}
