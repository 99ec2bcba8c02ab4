package providerblock_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/contract/manifest"
	"github.com/agentoutbox/drainer/contract/providerblock"
	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	dispatchhttp "github.com/agentoutbox/drainer/dispatch/http"
	"github.com/agentoutbox/drainer/drainer/config"
)

var update = flag.Bool("update", false, "rewrite the golden file")

func load(t *testing.T, file string) *manifest.Document {
	t.Helper()
	document, err := manifest.Load(filepath.Join("../manifest/testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

func parse(t *testing.T, text string) *manifest.Document {
	t.Helper()
	document, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

// configured writes the block to a file and loads it as a drainer would.
func configured(t *testing.T, block *providerblock.Block) dispatch.Provider {
	t.Helper()
	content, err := block.YAML()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "drainer.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	registry, err := dispatch.NewRegistry(dispatchhttp.Kind())
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(file, registry)
	if err != nil {
		t.Fatalf("%v\n%s", err, content)
	}
	return loaded.Providers[0]
}

func TestAGoodDocumentBecomesAConfigurationThatLoads(t *testing.T) {
	t.Parallel()
	block, skipped := providerblock.From(load(t, "good.yaml"), "billing")
	if len(skipped) > 0 {
		t.Errorf("left out: %+v", skipped)
	}
	got, err := block.YAML()
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/billing.yaml"
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the configuration changed; look at it, then run this test with -update\n%s", got)
	}

	tools := configured(t, block).Tools
	charge, letter := tools["create_charge"], tools["send_letter"]
	if charge.Class != dispatch.KeyIdempotent || charge.KeyTTL != 24*time.Hour || charge.Reversal != (dispatch.Reversal{Tool: "billing/refund", Window: 90 * 24 * time.Hour}) {
		t.Errorf("create_charge is %+v", charge)
	}
	if letter.Lookup == nil || letter.Lookup.Operation != "find_letter" || len(config.MissingSafeguards(letter)) > 0 {
		t.Errorf("send_letter is %+v, want all that makes it safe for agents", letter)
	}
	if _, imported := tools["rates"]; imported {
		t.Error("a read that is neither declared nor needed was imported")
	}
}

func TestAViolationIsNeverImported(t *testing.T) {
	t.Parallel()
	document := load(t, "bad.yaml")
	block, skipped := providerblock.From(document, "bad")
	if !block.Empty() {
		t.Errorf("imported %+v", block)
	}
	named := map[string]bool{}
	for _, operation := range skipped {
		named[operation.Method+" "+operation.Path] = true
	}
	for _, operation := range document.Operations {
		if declared := operation.Declaration != nil || operation.Writes(); declared && len(operation.Violations) > 0 && !named[operation.Method+" "+operation.Path] {
			t.Errorf("%s %s is left out without a word", operation.Method, operation.Path)
		}
	}
}

const head = "openapi: 3.1.0\nservers: [{url: https://api.example}]\npaths:\n"

// keyed returns a POST that is key_idempotent and has its key at place.
func keyed(path, id, place, parameters string) string {
	return fmt.Sprintf(`  %s:
    post:
      operationId: %s
      parameters: %s
      responses:
        "200": {description: Done., headers: {Idempotency-Replay: {schema: {type: string}}}}
        "409": {description: Refused.}
      x-agent-idempotency: {class: key_idempotent, key: {%s}, ttl: 24h, scope: account, replay: {header: Idempotency-Replay, value: "true"}, conflict_status: 409}
`, path, id, parameters, place)
}

const keyHeader = "[{in: header, name: Idempotency-Key, schema: {type: string}}]"

func TestWhatWouldHaveToBeGuessedIsLeftOut(t *testing.T) {
	t.Parallel()
	plain := func(path, more string) string {
		return fmt.Sprintf("  %s:\n    post: {operationId: it, responses: {'200': {description: Done.}}, x-agent-idempotency: {class: naturally_idempotent}, %s}\n", path, more)
	}
	for name, test := range map[string]struct{ paths, why string }{
		"no name":           {strings.Replace(plain("/a", ""), "operationId: it, ", "", 1), "operationId"},
		"a server":          {plain("/a", "servers: [{url: https://other.example}]"), "a server of its own"},
		"a cookie":          {plain("/a", "parameters: [{in: cookie, name: session, required: true, schema: {type: string}}]"), "cookie"},
		"a file":            {plain("/a", "requestBody: {content: {multipart/form-data: {}}}"), "neither JSON nor a form"},
		"a framing header":  {plain("/a", "parameters: [{in: header, name: Content-Length, required: true, schema: {type: string}}]"), "Content-Length is set by the adapter itself"},
		"a query in a path": {plain("/a?b=c", ""), "use query"},
		"a trace":           {"  /a:\n    trace: {operationId: it, responses: {'200': {description: Done.}}, x-agent-idempotency: {class: read_only}}\n", "method is none of"},
		"a secret": {
			plain("'/a/${env:HOME}'", ""), "reads as a secret",
		},
		"a secret in a scope": {
			strings.Replace(keyed("/a", "it", "header: Idempotency-Key", keyHeader), "scope: account", "scope: '${env:HOME}'", 1), "reads as a secret",
		},
		"a key in a body that has none": {
			strings.Replace(keyed("/0", "first", "field: key", "[]"), "responses:", "requestBody: {content: {application/json: {schema: {properties: {key: {type: string}}}}}}\n      responses:", 1) +
				plain("/a", "requestBody: {content: {application/json: {}}}"),
			"would carry the provider's key field",
		},
		"a key elsewhere": {
			keyed("/0", "first", "header: Idempotency-Key", keyHeader) + keyed("/a", "it", "query: key", "[{in: query, name: key, schema: {type: string}}]"),
			"elsewhere",
		},
	} {
		_, skipped := providerblock.From(parse(t, head+test.paths), "p")
		if len(skipped) != 1 || !strings.HasPrefix(skipped[0].Path, "/a") || !strings.Contains(skipped[0].Why, test.why) {
			t.Errorf("%s: left out %+v, want one that says %q", name, skipped, test.why)
		}
	}
}

func TestWhatReliesOnALeftOutOperationIsLeftOut(t *testing.T) {
	t.Parallel()
	document := parse(t, head+`  /letters:
    post:
      operationId: send
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: non_idempotent, reversal: recall, lookup: find, reversal_window: 1h}
    get: {operationId: find, responses: {"200": {description: Done.}}}
    delete:
      operationId: recall
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent, reversal: shred}
  /shredder:
    post:
      operationId: shred
      servers: [{url: https://other.example}]
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
`)
	block, skipped := providerblock.From(document, "mail")
	var left []string
	for _, operation := range skipped {
		left = append(left, operation.Method+" "+operation.Path)
	}
	if got := strings.Join(left, ", "); got != "DELETE /letters, POST /letters, POST /shredder" {
		t.Errorf("left out %s: %+v", got, skipped)
	}
	if tools := configured(t, block).Tools; len(tools) != 1 {
		t.Errorf("imported %+v, want the read alone", tools)
	}
}

func TestADocumentWithoutAServerGetsAPlaceholder(t *testing.T) {
	t.Parallel()
	for _, servers := range []string{"[]", "[{url: /v1}]", "[{url: 'https://user:secret@api.example'}]", "[{url: 'https://api.example/${env:HOME}'}]"} {
		document := parse(t, "openapi: 3.0.3\nservers: "+servers+"\npaths:\n"+keyed("/a", "it", "header: Idempotency-Key", keyHeader))
		block, _ := providerblock.From(document, "p")
		content, err := block.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(content), "base_url: https://base-url.invalid\n") || !strings.Contains(string(content), "# Replace base_url") {
			t.Errorf("%s: got\n%s", servers, content)
		}
		configured(t, block)
	}
}

func TestWhatTheDocumentSaysOfAnswersIsUnderstood(t *testing.T) {
	t.Parallel()
	status, header := make(chan int, 1), make(chan string, 1)
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(<-header, "true")
		w.WriteHeader(<-status)
	}))
	paths := strings.NewReplacer(
		"Idempotency-Replay", "X-Again",
		"conflict_status: 409", "conflict_status: 422, in_flight_status: 409",
		`"409":`, `"422": {description: Another payload.}
        "409":`,
	).Replace(keyed("/charges", "charge", "header: Idempotency-Key", keyHeader)) + `
  /letters:
    get:
      operationId: find
      responses: {"200": {description: The letters.}}
      x-agent-idempotency: {class: read_only, absent: .status == 404}
    post:
      operationId: send
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent, lookup: find}
`
	block, skipped := providerblock.From(parse(t, "openapi: 3.1.0\nservers: [{url: "+baseURL+"}]\npaths:\n"+paths), "p")
	if len(skipped) > 0 {
		t.Fatalf("left out: %+v", skipped)
	}
	adapter := configured(t, block).Adapter
	for _, test := range []struct {
		operation, header string
		status            int
		outcome           dispatch.Outcome
		replayed          bool
	}{
		{"charge", "X-Again", 200, dispatch.Completed, true},
		{"charge", "X-Other", 200, dispatch.Completed, false},
		{"charge", "X-Other", 409, dispatch.InFlight, false},
		{"charge", "X-Other", 422, dispatch.Rejected, false},
		{"find", "X-Other", 404, dispatch.Absent, false},
	} {
		header <- test.header
		status <- test.status
		result := adapter.Dispatch(t.Context(), dispatch.Request{Tuple: dispatch.Tuple{ToolName: "p/" + test.operation}, Payload: json.RawMessage("{}")})
		if result.Outcome != test.outcome || result.Replayed != test.replayed {
			t.Errorf("%+v: got %+v", test, result)
		}
	}
}

func TestAReplayMarkerIsKeptOrNamed(t *testing.T) {
	t.Parallel()
	marked := func(id, header, value string) string {
		return strings.NewReplacer("Idempotency-Replay", header, `value: "true"`, `value: "`+value+`"`).
			Replace(keyed("/"+id, id, "header: Idempotency-Key", keyHeader))
	}
	block, skipped := providerblock.From(parse(t, head+marked("a", "Idempotency-Replay", "true")+marked("b", "X-Again", "TRUE")+
		marked("c", "X-Again", "true")+marked("d", "X-Other", "true")+marked("e", "X-Again", "hit")), "p")
	if len(skipped) > 0 {
		t.Fatalf("left out: %+v", skipped)
	}
	configured(t, block)
	content, err := block.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), "replay_header: X-Again\n") {
		t.Errorf("the marker of a later operation is not in\n%s", content)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		if said, want := strings.Contains(string(content), "# Replays of "+id+" are not seen"), id > "c"; said != want {
			t.Errorf("%s: said that its marker is not kept: %v, want %v, in\n%s", id, said, want, content)
		}
	}
}

func TestAReadThatCannotTellAbsenceIsNoLookup(t *testing.T) {
	t.Parallel()
	block, skipped := providerblock.From(parse(t, head+`  /letters:
    get: {operationId: find, responses: {"200": {description: The letters.}}}
    post:
      operationId: send
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent, lookup: find}
`), "p")
	if len(skipped) > 0 || configured(t, block).Tools["send"].Lookup != nil {
		t.Errorf("left out %+v; want the tool without a lookup", skipped)
	}
	if content, err := block.YAML(); err != nil || !strings.Contains(string(content), "# Give send its lookup") {
		t.Errorf("%v, want a remark in\n%s", err, content)
	}
}

func TestWhatMayNotBeRepeatedOrComesBackUndoesNothing(t *testing.T) {
	t.Parallel()
	act := func(id, class string) string {
		return fmt.Sprintf("  /%s:\n    post: {operationId: %s, responses: {'200': {description: Done.}}, x-agent-idempotency: {%s}}\n", id, id, class)
	}
	block, skipped := providerblock.From(parse(t, head+
		act("a", "class: naturally_idempotent, reversal: b")+
		act("b", "class: naturally_idempotent, reversal: c")+
		act("c", "class: naturally_idempotent, reversal: a")+
		act("in", "class: naturally_idempotent, reversal: a")+
		act("send", "class: naturally_idempotent, reversal: recall")+
		act("recall", "class: non_idempotent, reversal: shred, reversal_window: 1h, lookup: find")+
		act("shred", "class: naturally_idempotent")+
		"  /find:\n    get: {operationId: find, responses: {'200': {description: What there is.}}}\n",
	), "p")
	if len(skipped) > 0 {
		t.Fatalf("left out: %+v", skipped)
	}
	undos := map[string]string{}
	for operation, policy := range configured(t, block).Tools {
		if policy.Reversal.Tool != "" {
			undos[operation] = policy.Reversal.Tool
		}
	}
	if want := map[string]string{"b": "p/c", "c": "p/a", "in": "p/a", "recall": "p/shred"}; !maps.Equal(undos, want) {
		t.Errorf("got %v, want %v", undos, want)
	}
	content, err := block.YAML()
	for _, remark := range []string{"# Give recall its lookup: ", "# Give send its compensate_with: the document undoes it with recall, ", "# Give a its compensate_with: the document comes back"} {
		if err != nil || strings.Count(string(content), remark) != 1 {
			t.Errorf("%v, want %q in\n%s", err, remark, content)
		}
	}
}

func TestIntentsAreKeptAsLongAsTheirKeys(t *testing.T) {
	t.Parallel()
	block, _ := providerblock.From(parse(t, head+strings.Replace(keyed("/a", "it", "header: Idempotency-Key", keyHeader), "ttl: 24h", "ttl: 120d", 1)), "p")
	if ttl := configured(t, block).Tools["it"].KeyTTL; ttl != 120*24*time.Hour {
		t.Errorf("the key lives for %v", ttl)
	}
}

// sent is a request as the provider received it.
type sent struct{ Method, Target, ContentType, Version, Key, Body string }

func TestAnImportedToolSendsWhatTheDocumentDescribes(t *testing.T) {
	t.Parallel()
	received := make(chan sent, 1)
	baseURL := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- sent{r.Method, r.URL.RequestURI(), r.Header.Get("Content-Type"), r.Header.Get("X-Version"), r.Header.Get("X-Key"), string(body)}
		w.WriteHeader(http.StatusOK)
	}))
	document := parse(t, "openapi: 3.1.0\nservers: [{url: "+baseURL+"/api}]\npaths:\n"+keyed("/keyed", "keyed", "header: X-Key", "[{in: header, name: x-key, required: true, schema: {type: string}}]")+`
  /customers/{customer-id}/notes/{note}.{format}:
    parameters:
      - {in: path, name: customer-id, required: true, schema: {type: string}}
      - {in: path, name: note, required: true, schema: {type: string}}
      - {in: path, name: format, required: true, schema: {type: string}}
      - {in: query, name: "q'\"\\(1)", required: true, schema: {type: string}}
      - {in: query, name: optional, schema: {type: string}}
      - {in: header, name: X-Version, required: true, schema: {type: integer}}
      - {in: header, name: Authorization, required: true, schema: {type: string}}
    put:
      operationId: note
      requestBody: {content: {application/vnd.api+json: {schema: {properties: {note: {type: string}, text: {type: string}}}}}}
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
    patch:
      operationId: amend
      requestBody: {content: {application/x-www-form-urlencoded: {}}}
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
    delete:
      operationId: erase
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
  /octets:
    post:
      operationId: octets
      requestBody: {content: {application/json; charset=utf-8: {}}}
      responses: {"200": {description: Done.}}
      x-agent-idempotency: {class: naturally_idempotent}
`)
	block, skipped := providerblock.From(document, "notes")
	if len(skipped) > 0 {
		t.Fatalf("left out: %+v", skipped)
	}
	adapter := configured(t, block).Adapter
	payload := `{"customer-id": "a b", "note": "n", "format": "md", "q'\"\\(1)": "x y", "X-Version": 7, "text": "hello", "big": 12345678901234567890}`
	const target = "/api/customers/a%20b/notes/n.md?q%27%22%5C%281%29=x+y"

	for operation, want := range map[string]sent{
		"note":   {"PUT", target, "application/vnd.api+json", "7", "the-key", `{"big":12345678901234567890,"note":"n","text":"hello"}`},
		"amend":  {"PATCH", target, "application/x-www-form-urlencoded", "7", "the-key", "big=12345678901234567890&text=hello"},
		"erase":  {"DELETE", target, "", "7", "the-key", ""},
		"keyed":  {"POST", "/api/keyed", "", "", "the-key", ""},
		"octets": {"POST", "/api/octets", "application/json", "", "the-key", payload},
	} {
		result := adapter.Dispatch(t.Context(), dispatch.Request{
			Tuple: dispatch.Tuple{ToolName: "notes/" + operation}, IdempotencyKey: "the-key", Payload: json.RawMessage(payload),
		})
		if result.Outcome != dispatch.Completed {
			t.Errorf("%s: %+v", operation, result)
			continue
		}
		if got := <-received; got != want {
			t.Errorf("%s: got  %+v\nwant %+v", operation, got, want)
		}
	}
}

// For any document, the configuration that is written from it can be loaded, and reads no secret.
func FuzzWhatIsImportedLoads(f *testing.F) {
	for _, file := range []string{"good.yaml", "good.json", "bad.yaml"} {
		content, err := os.ReadFile(filepath.Join("../manifest/testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content, "billing")
	}
	for _, path := range []string{"/a", "'/a/{x}'", "'/a/${env:HOME}'", "'/{a.b}/%2e%2e/{ü}'", "'/a\"b: c #'", "/~", "'/{{}}'"} {
		f.Add([]byte(head+keyed(path, "it", "header: Idempotency-Key", keyHeader)), "p")
		f.Add([]byte(head+keyed(path, "'on'", "query: k", "[{in: query, name: k, schema: {type: string}}]")), "null")
		f.Add([]byte(head+keyed(path, "'a: b'", "field: key", "[]")), "${env:HOME}")
	}
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		document, err := manifest.Parse(content)
		if err != nil || name == "" || strings.Contains(name, "/") {
			return
		}
		block, skipped := providerblock.From(document, name)
		for _, operation := range skipped {
			if operation.Path == "" || operation.Why == "" {
				t.Errorf("left out without a word: %+v", operation)
			}
		}
		if !block.Empty() {
			configured(t, block)
		}
	})
}
