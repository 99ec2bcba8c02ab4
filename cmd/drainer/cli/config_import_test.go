package cli

import (
	"strings"
	"testing"
)

func TestConfigImportWritesAConfigurationThatIsValid(t *testing.T) {
	t.Parallel()
	imported := run(t, "config", "import", goodManifest, "--provider", "billing")
	if imported.code != exitOK || imported.stderr != "" {
		t.Fatalf("got %+v", imported)
	}
	got := run(t, "config", "validate", "--config", write(t, "drainer.yaml", imported.stdout))
	if got.code != exitOK || !strings.Contains(got.stdout, "billing/create_charge  key_idempotent") {
		t.Errorf("got %+v", got)
	}
}

func TestConfigImportSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	mixed := badManifest + `  /v1/addresses:
    put:
      operationId: set_address
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
`
	got := run(t, "config", "import", write(t, "openapi.yaml", mixed), "--provider", "billing")
	want := `left out: DELETE /v1/charges: drainer verify manifest finds violations in it: 1
left out: POST /v1/charges: drainer verify manifest finds violations in it: 1
drainer: operations left out: 2
`
	if got.code != exitFailed || got.stderr != want || !strings.Contains(got.stdout, "set_address:") {
		t.Errorf("got %+v, want\n%s", got, want)
	}
	validated := run(t, "config", "validate", "--config", write(t, "drainer.yaml", got.stdout))
	if validated.code != exitOK {
		t.Errorf("what is left is not valid: %+v", validated)
	}
}

func TestConfigImportPrintsNothingWhereNothingCanBeImported(t *testing.T) {
	t.Parallel()
	got := run(t, "config", "import", write(t, "openapi.yaml", badManifest), "--provider", "billing")
	if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "no operation could be imported") {
		t.Errorf("got %+v", got)
	}
	for _, provider := range []string{"", "a/b"} {
		if got := run(t, "config", "import", goodManifest, "--provider", provider); got.code != exitUsage {
			t.Errorf("--provider %q: %+v", provider, got)
		}
	}
}
