package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What the documentation shows is what people copy.
func TestTheExamplesOfTheDocumentationAreValid(t *testing.T) {
	for _, name := range []string{"SLACK_TOKEN", "STRIPE_KEY", "PAGERDUTY_KEY"} {
		t.Setenv(name, "secret")
	}
	t.Setenv("DATABASE_URL", "postgres://localhost/app")
	t.Setenv("SLACK_WEBHOOK", "https://hooks.slack.com/services/T0/B0/x")
	t.Setenv("WEBHOOK_SECRET", signingSecret)
	around := map[string]string{
		"docs/retention.md": "version: 1\nproviders: {p: {adapter: http, http: {base_url: https://p.example}, tools: {t: {http: {path: /}, idempotency: {class: read_only}}}}}\n",
		"docs/outcomes.md":  "version: 1\nproviders:\n  bank:\n    adapter: http\n    http: {base_url: https://bank.example}\n",
		"README.md":         yamlIn(t, "README.md")[0],
	}
	secrets := secretFiles(t)
	for _, page := range documents(t) {
		for _, example := range yamlIn(t, page) {
			if isPart := !strings.HasPrefix(example, "version:") && !strings.HasPrefix(example, "# yaml-language-server"); isPart {
				example = around[page] + example
			}
			example = secrets.mount(t, example)
			if got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", example)); got.code != exitOK {
				t.Errorf("%s: %s\n%s", page, got.stderr, example)
			}
		}
	}
}

// documents are all that may show a configuration. docs/contract.md shows OpenAPI,
// docs/kubernetes.md values of the chart, which are tested with it.
func documents(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/adapters/*.md"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			if page := strings.TrimPrefix(file, "../../../"); page != "docs/contract.md" && page != "docs/kubernetes.md" {
				all = append(all, page)
			}
		}
	}
	if len(all) < 10 {
		t.Fatalf("found only %v", all)
	}
	return all
}

func yamlIn(t *testing.T, page string) (examples []string) {
	t.Helper()
	text, err := os.ReadFile("../../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		examples = append(examples, string(match[1]))
	}
	return examples
}

const signingSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// mounted are files that stand for those that an example refers to, by what
// the end of their names says that they hold.
type mounted struct{ certificate, key, signing, other string }

var fileReference = regexp.MustCompile(`\$\{file:([^}]+)\}`)

func (m mounted) mount(t *testing.T, example string) string {
	t.Helper()
	return fileReference.ReplaceAllStringFunc(example, func(reference string) string {
		name := fileReference.FindStringSubmatch(reference)[1]
		switch {
		case strings.HasSuffix(name, ".pem"), strings.HasSuffix(name, ".crt"):
			return "${file:" + m.certificate + "}"
		case strings.HasSuffix(name, ".key"):
			return "${file:" + m.key + "}"
		case strings.HasSuffix(name, "hook"):
			return "${file:" + m.signing + "}"
		}
		return "${file:" + m.other + "}"
	})
}

func secretFiles(t *testing.T) mounted {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return mounted{
		certificate: write(t, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))),
		key:         write(t, "tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))),
		signing:     write(t, "hook", signingSecret),
		other:       write(t, "other", "secret"),
	}
}

// The example of an adapter's test is one that runs.
func TestTheExampleOfAConformanceTestIsTheRealOne(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../../examples/custom-adapter/filedrop/filedrop_test.go")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(page)
	if example == nil || !strings.Contains(string(source), string(example[1])) {
		t.Error("docs/conformance.md shows another test than filedrop_test.go")
	}
}
