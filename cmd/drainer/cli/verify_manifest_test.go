package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentoutbox/drainer/contract/manifest"
)

const badManifest = `openapi: 3.1.0
info: {title: Billing, version: "1"}
paths:
  /v1/charges:
    post: {operationId: create_charge, responses: {"200": {description: Done.}}}
    delete:
      operationId: delete_charges
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent, ttl: 24h}
`

func TestVerifyManifestListsEveryViolationAndExitsWith1(t *testing.T) {
	t.Parallel()
	got := run(t, "verify", "manifest", write(t, "openapi.yaml", badManifest))
	want := result{
		exitFailed,
		`LINE  OPERATION           PLACE                    PROBLEM                                       CURE
6     DELETE /v1/charges  x-agent-idempotency.ttl  it has no meaning for naturally_idempotent    leave it out, or correct the class
5     POST /v1/charges    x-agent-idempotency      nothing says what repeating this call does    add it, with the class that is true: read_only, naturally_idempotent, key_idempotent, non_idempotent
`,
		"drainer: 2 violations in 2 operations\n",
	}
	if squeeze(got.stdout) != squeeze(want.stdout) || got.code != want.code || got.stderr != want.stderr {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// squeeze leaves the widths of columns to the table.
func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestVerifyManifestPrintsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "verify", "manifest", write(t, "openapi.yaml", badManifest), "-o", "json")
	var verdict manifestVerdict
	if err := json.Unmarshal([]byte(got.stdout), &verdict); err != nil {
		t.Fatal(err)
	}
	if got.code != exitFailed || verdict.Valid || verdict.Writes != 2 || len(verdict.Violations) != 2 || verdict.Violations[1].Rule != manifest.RuleUndeclared {
		t.Errorf("got %+v", got)
	}
}

func TestAGoodManifestExitsWith0(t *testing.T) {
	t.Parallel()
	want := result{exitOK, "8 operations, 6 writes, no violation\n", ""}
	if got := run(t, "verify", "manifest", goodManifest); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got := run(t, "verify", "manifest", goodManifest, "-o", "json")
	if got.code != exitOK || !strings.Contains(got.stdout, `"violations": []`) {
		t.Errorf("got %+v", got)
	}
}

const goodManifest = "../../../contract/manifest/testdata/good.yaml"

func TestAnUnreadableManifestFails(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"swagger: '2.0'", "no: [openapi"} {
		got := run(t, "verify", "manifest", write(t, "openapi.yaml", content))
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, manifest.ErrUnreadable.Error()) {
			t.Errorf("%s: got %+v", content, got)
		}
	}
	if got := run(t, "verify", "manifest"); got.code != exitUsage {
		t.Errorf("without a document: %+v", got)
	}
}
