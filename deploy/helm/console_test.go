package helm_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

func TestThereIsNoConsoleUnlessItIsAskedFor(t *testing.T) {
	t.Parallel()
	if _, there := pods(t, scenario(t, "minimal"))["console"]; there {
		t.Error("a console runs")
	}
	if ways := findAll[networking.Ingress](t, scenario(t, "everything")); len(ways) > 0 {
		t.Error("the console can be reached from outside the cluster")
	}
}

func TestTheConsoleHasALoginAServiceAndAnIngressOfItsOwn(t *testing.T) {
	t.Parallel()
	v := scenario(t, "console")
	pod := pods(t, v)["console"]
	container := pod.Spec.Containers[0]
	service := find[core.Service](t, v)
	if !maps.Equal(service.Spec.Selector, selected(pod.Labels, service.Spec.Selector)) || service.Spec.Selector[component] != "console" {
		t.Errorf("the Service selects %v, the pod has %v", service.Spec.Selector, pod.Labels)
	}
	if service.Spec.Type != "" || service.Spec.Ports[0].TargetPort.String() != container.Ports[0].Name {
		t.Errorf("the Service leads to %+v", service.Spec)
	}
	way := find[networking.Ingress](t, v)
	if backend := way.Spec.Rules[0].HTTP.Paths[0].Backend.Service; backend.Name != service.Name || backend.Port.Name != service.Spec.Ports[0].Name {
		t.Errorf("the Ingress leads to %+v", backend)
	}
	if way.Spec.TLS[0].SecretName != "drainer-tls" || way.Spec.TLS[0].Hosts[0] != way.Spec.Rules[0].Host {
		t.Errorf("the Ingress has %+v", way.Spec.TLS)
	}
	in := policyOf(t, v, "console").Spec.Ingress
	if len(in) != 1 || len(in[0].From) != 1 || in[0].Ports[0].Port.String() != container.Ports[0].Name {
		t.Errorf("who reaches it: %+v", in)
	}
	for name, want := range map[string][]string{"everything": {"53", "53", "6432"}, "oidc": {"53", "53", "5432", "8443"}} {
		if ports := egressPorts(policyOf(t, scenario(t, name), "console")); !slices.Equal(ports, want) {
			t.Errorf("%s: it may reach ports %v, want %v", name, ports, want)
		}
	}
}

// A probe shows no certificate, so it may do no more than connect.
func TestAConsoleOverTLSIsServedAndProbedAsSuch(t *testing.T) {
	t.Parallel()
	v := scenario(t, "minimal").with(t, `console: {enabled: true, database: {secret: a}, tls: {secret: b}, proxy: {names: [proxy.example]}, ingress: {enabled: true, host: drainer.example}}`)
	container := pods(t, v)["console"].Spec.Containers[0]
	for _, probe := range []*core.Probe{container.ReadinessProbe, container.LivenessProbe} {
		if probe.TCPSocket == nil {
			t.Errorf("a probe is %+v", probe)
		}
	}
	if port := find[core.Service](t, v).Spec.Ports[0]; port.Name != "https" || port.Port != 443 || *port.AppProtocol != "https" {
		t.Errorf("the Service has the port %+v", port)
	}
	if backend := find[networking.Ingress](t, v).Spec.Rules[0].HTTP.Paths[0].Backend.Service; backend.Port.Name != "https" {
		t.Errorf("the Ingress leads to %+v", backend)
	}
}

func selected(labels, by map[string]string) map[string]string {
	found := map[string]string{}
	for name := range by {
		found[name] = labels[name]
	}
	return found
}

// The program itself judges the command line. It refuses one that serves other machines without a login. With any
// other it goes on to the database.
func TestTheConsolesCommandLineIsOneThatTheProgramServes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"console", "everything", "oidc"} {
		// The console must not use the daemon's login.
		v := scenario(t, name).with(t, "config: {database: {url: '${file:/run/secrets/url}'}}")
		serve := func(without ...string) string {
			pod := pods(t, v)["console"].Spec
			pod.Containers[0].Args = slices.DeleteFunc(pod.Containers[0].Args, func(arg string) bool {
				flag, _, _ := strings.Cut(arg, "=")
				return slices.Contains(without, flag)
			})
			output, _ := inPod(t, pod, configOf(t, v)).CombinedOutput() // it cannot begin without a database
			return string(output)
		}
		if said := serve(); !strings.Contains(said, "127.0.0.1:1") || strings.Contains(said, "--listen") {
			t.Errorf("%s:\n%s", name, said)
		}
		if said := serve("--tokens", "--trust-proxy", "--proxy-ca-file", "--proxy-name", "--oidc-issuer", "--oidc-client", "--url", "--oidc-secret-file"); !strings.Contains(said, "is open to other machines") {
			t.Errorf("%s: without a word on who may read it is served:\n%s", name, said)
		}
	}
}

func TestAConsoleForStrangersIsNotRendered(t *testing.T) {
	t.Parallel()
	for values, why := range map[string]string{
		"console: {enabled: true, database: {secret: a}}":                                                                                "who may read",
		"console: {enabled: true, tokens: {secret: b}}":                                                                                  "console.database.secret is missing",
		"console: {enabled: true, database: {secret: a}, tokens: {secret: b}, proxy: {addresses: [10.0.0.0/8]}, from: [{}]}":             "keep one",
		"console: {enabled: true, database: {secret: a}, tokens: {secret: b}, oidc: {issuer: 'https://l', client: c, url: 'https://u'}}": "keep one",
		"console: {enabled: true, database: {secret: a}, oidc: {issuer: 'https://login.example', url: 'https://u'}}":                     "console.oidc.client is missing",
		"console: {enabled: true, database: {secret: a}, oidc: {issuer: 'https://login.example', client: c}}":                            "console.oidc.url is missing",
		"console: {enabled: true, database: {secret: a}, oidc: {issuer: 'http://login.example', client: c, url: 'https://u'}}":           "issuer",
		"console: {enabled: true, database: {secret: a}, tokens: {secret: b}, operators: on-call}":                                       "with console.tokens each line says the role",
		"console: {enabled: true, database: {secret: a}, proxy: {addresses: [10.0.0.0/8]}}":                                              "console.from is missing",
		"console: {enabled: true, database: {secret: a}, proxy: {names: [proxy.example]}, from: [{}]}":                                   "console.tls.secret is missing",
		"console: {enabled: true, database: {secret: a}, tls: {secret: b}, tokens: {secret: b}, proxy: {names: [proxy.example]}}":        "keep one",
		"console: {enabled: true, database: {secret: a}, tls: {secret: b}}":                                                              "who may read",
		"console: {enabled: true, database: {secret: a}, proxy: {addresses: [oauth2-proxy]}}":                                            "addresses",
		"console: {enabled: true, database: {secret: a}, tokens: {secret: b}, ingress: {enabled: true}}":                                 "console.ingress.host is missing",
	} {
		if got := refusal(t, scenario(t, "minimal").with(t, values)); !strings.Contains(got, why) {
			t.Errorf("%s: refused with %q, want a word about %q", values, got, why)
		}
	}
}
