package mcpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/doctor"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/internal/pgpool"
	"github.com/agentoutbox/drainer/mcpserver"
)

func TestMain(m *testing.M) { drainertest.Main(m) }

// assistant is a client of a server on an outbox with three intents of run r: 1 completed, 2
// of unknown outcome with an incident, and 3, which waits for a paused provider.
type assistant struct {
	t       *testing.T
	session *sdk.ClientSession
	db      *pgxpool.Pool
}

func newAssistant(t *testing.T, options mcpserver.Options) assistant {
	t.Helper()
	url := drainertest.Database(t)
	var err error
	if options.Pool, err = pgpool.Open(t.Context(), pgpool.At(url), 4); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(options.Pool.Close)
	options.Examine = func(context.Context) ([]doctor.Finding, error) {
		return []doctor.Finding{{Check: "connection", Verdict: doctor.OK, Seen: "it answers"}}, nil
	}
	here, there := sdk.NewInMemoryTransports()
	server, err := mcpserver.New(options).Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	session, err := sdk.NewClient(&sdk.Implementation{Name: "assistant"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	a := assistant{t, session, drainertest.Connect(t, url)}
	for _, statement := range []string{
		`SELECT outbox.enqueue('r', 's' || n, 'bank/pay', 'b', '{"memo": "canary-payload"}') FROM generate_series(1, 3) n`,
		`DELETE FROM outbox.queue WHERE intent_id < 3`,
		`INSERT INTO outbox.attempt (intent_id, attempt, worker, started_at, outcome, status, http_status, response, error, problem) VALUES
			(1, 1, 'w', now(), 'completed', 'completed', 200, '{"id": "canary-response"}', NULL, NULL),
			(2, 1, 'w', now(), 'ambiguous', 'unknown', 502, NULL, 'http_502', '{"title": "canary-problem"}')`,
		`INSERT INTO outbox.incident (kind, intent_id, agent_run_id) VALUES ('outcome_unknown', 2, 'r')`,
		`INSERT INTO outbox.worker (worker_id, providers) VALUES (gen_random_uuid(), '{bank}')`,
		`INSERT INTO outbox.provider (name) VALUES ('bank')`,
		`SELECT outbox.operate_provider('bank', true, 'operator:ann', 'the bank is closed')`,
	} {
		drainertest.Exec(t, a.db, statement)
	}
	return a
}

// ask calls a tool, and returns its text and whether it is an error.
func (a assistant) ask(tool, arguments string) (text string, isError bool) {
	a.t.Helper()
	result, err := a.session.CallTool(a.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	for _, content := range result.Content {
		text += content.(*sdk.TextContent).Text
	}
	return text, result.IsError
}

func (a assistant) tools() (names []string) {
	a.t.Helper()
	for tool, err := range a.session.Tools(a.t.Context(), nil) {
		if err != nil {
			a.t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	return names
}

func TestTheServerOnlyReadsUnlessItIsToldWhatToTake(t *testing.T) {
	t.Parallel()
	a := newAssistant(t, mcpserver.Options{})
	want := []string{"doctor", "incidents", "intent", "providers", "run", "why_does_it_wait"}
	if got := a.tools(); !slices.Equal(got, want) {
		t.Errorf("the tools are %q, want %q", got, want)
	}
	if _, err := a.session.CallTool(t.Context(), &sdk.CallToolParams{Name: "enqueue_bank_pay"}); err == nil {
		t.Error("a tool that is not offered was called")
	}
}

func TestQuestionsAreAnsweredFromTheOutbox(t *testing.T) {
	t.Parallel()
	a := newAssistant(t, mcpserver.Options{})
	for _, test := range []struct{ tool, arguments, want string }{
		{"why_does_it_wait", `{"intent": 3}`, "bank is paused: the bank is closed"},
		{"why_does_it_wait", `{"run": "r", "step": "s3", "tool": "bank/pay", "scope": "b"}`, "bank is paused: the bank is closed"},
		{"why_does_it_wait", `{"intent": 2}`, "nothing proves it; the last attempt ended with ambiguous, http_502, HTTP 502"},
		{"why_does_it_wait", `{"intent": 2}`, "drainer intents resolve 2"},
		{"why_does_it_wait", `{"intent": 1}`, "it does not wait: it is completed"},
		{"intent", `{"intent": 2}`, `"outcome":"ambiguous"`},
		{"run", `{"run": "r"}`, `"step_id":"s2"`},
		{"incidents", `{}`, `"kind":"outcome_unknown"`},
		{"incidents", `{"kind": "forbidden"}`, `{"incidents":[]}`},
		{"providers", `{}`, `"paused":true`},
		{"doctor", `{}`, "it answers"},
	} {
		if got, isError := a.ask(test.tool, test.arguments); isError || !strings.Contains(got, test.want) {
			t.Errorf("%s %s: %s, want %s in it", test.tool, test.arguments, got, test.want)
		}
	}
}

func TestAQuestionThatCannotBeAnsweredSaysWhy(t *testing.T) {
	t.Parallel()
	a := newAssistant(t, mcpserver.Options{})
	for _, test := range []struct{ tool, arguments, want string }{
		{"intent", `{"intent": 99}`, "there is no such intent"},
		{"intent", `{}`, "name the intent by its number"},
		{"intent", `{"run": "r", "step": "s1"}`, "name the intent by its number"},
		{"intent", `{"intent": "1; DROP TABLE outbox.intent"}`, "intent"},
		{"run", `{"run": "nope"}`, "there is no such run"},
	} {
		if got, isError := a.ask(test.tool, test.arguments); !isError || !strings.Contains(got, test.want) {
			t.Errorf("%s %s: %s, want an error with %q", test.tool, test.arguments, got, test.want)
		}
	}
	drainertest.Exec(t, a.db, `ALTER TABLE outbox.incident RENAME TO away`)
	if got, isError := a.ask("incidents", `{}`); !isError || strings.Contains(got, "SELECT") {
		t.Errorf("a database that refuses: %s", got)
	}
}

func TestPayloadsAndWordsOfProvidersAreShownOnlyWhereItIsTold(t *testing.T) {
	t.Parallel()
	for _, shown := range []bool{false, true} {
		a := newAssistant(t, mcpserver.Options{ShowPayloads: shown})
		said := ""
		for _, call := range [][2]string{{"intent", `{"intent": 1}`}, {"intent", `{"intent": 2}`}, {"run", `{"run": "r"}`}, {"why_does_it_wait", `{"intent": 2}`}} {
			text, _ := a.ask(call[0], call[1])
			said += text
		}
		for _, canary := range []string{"canary-payload", "canary-response", "canary-problem"} {
			if strings.Contains(said, canary) != shown {
				t.Errorf("--show-payloads=%v, and %s is in the answers: %v", shown, canary, !shown)
			}
		}
	}
}

// positive is a schema that demands an amount.
type positive struct{}

func (positive) Violation(payload json.RawMessage) *dispatch.Problem {
	if strings.Contains(string(payload), "amount") {
		return nil
	}
	return &dispatch.Problem{Detail: "/required"}
}

func (positive) Document() json.RawMessage {
	return json.RawMessage(`{"type": "object", "required": ["amount"]}`)
}

// taking returns an assistant with the offer bank/pay. The environment names its step.
func taking(t *testing.T, environment map[string]string) assistant {
	return newAssistant(t, mcpserver.Options{
		Offers: []mcpserver.Offer{{Tool: "bank/pay", Schema: positive{}}},
		StepOf: mcpserver.StepOfEnvironment(func(name string) string { return environment[name] }),
	})
}

func TestACallIsOneIntentOfTheStepOfTheEnvironment(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "new", "DRAINER_STEP": "pay"})
	want := []string{"doctor", "enqueue_bank_pay", "incidents", "intent", "providers", "run", "why_does_it_wait"}
	if got := a.tools(); !slices.Equal(got, want) {
		t.Fatalf("the tools are %q, want %q", got, want)
	}
	if got, isError := a.ask("enqueue_bank_pay", `{"memo": "no"}`); !isError || !strings.Contains(got, "violate") {
		t.Errorf("a payload that violates the schema: %s", got)
	}
	// An argument cannot name another step: it is part of the payload.
	if got, isError := a.ask("enqueue_bank_pay", `{"amount": 12345678901234567890, "step": "other"}`); isError || got != "It is recorded. It will be carried out, or its failure reported. Do not ask for it again." {
		t.Errorf("the first call: %s", got)
	}
	if got, isError := a.ask("enqueue_bank_pay", `{"amount": 2}`); !isError || !strings.Contains(got, "used up") {
		t.Errorf("a second call of the same step: %s", got)
	}
	const recorded = `SELECT string_agg(concat_ws(' ', agent_run_id, step_id, tool_name, business_scope, payload->>'amount'), ';') FROM outbox.intent WHERE id > 3`
	if got := drainertest.Value[string](t, a.db, recorded); got != "new pay bank/pay new 12345678901234567890" {
		t.Errorf("recorded: %s", got)
	}
}

func TestARefusalDoesNotUseUpTheStep(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "r", "DRAINER_STEP": "s9", "DRAINER_SCOPE": "b"})
	drainertest.Exec(t, a.db, `UPDATE outbox.intent SET tenant = 1`)
	drainertest.Exec(t, a.db, `UPDATE outbox.queue SET tenant = 1`)
	drainertest.Exec(t, a.db, `INSERT INTO outbox.tenant (name, role, max_due) VALUES ('own', session_user, 1)`)
	ask := func(arguments, sentence string) {
		t.Helper()
		if got, _ := a.ask("enqueue_bank_pay", arguments); got != vectors(t)[sentence] {
			t.Errorf("%s: %q, want %q", arguments, got, vectors(t)[sentence])
		}
	}
	ask(`{"amount": 1, "memo": "\u0000"}`, "invalid")
	ask(`{"amount": 1}`, "limit_reached")
	drainertest.Exec(t, a.db, `UPDATE outbox.tenant SET max_due = 100`)
	ask(`{"amount": 1}`, "recorded")
	if got, _ := a.ask("enqueue_bank_pay", `{"amount": 1}`); !strings.Contains(got, "used up") {
		t.Errorf("a call after the one that was recorded: %s", got)
	}
}

func TestACallOfWhichTheCommitIsNotAnsweredIsNotCalledRefused(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "new", "DRAINER_STEP": "pay"})
	drainertest.Exec(t, a.db, `CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'`)
	drainertest.Exec(t, a.db, `CREATE CONSTRAINT TRIGGER hang_up AFTER INSERT ON outbox.intent DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hang_up()`)
	if got, isError := a.ask("enqueue_bank_pay", `{"amount": 1}`); !isError || !strings.Contains(got, "may have been recorded") {
		t.Errorf("a connection that ends in the commit: %s", got)
	}
	if got, _ := a.ask("enqueue_bank_pay", `{"amount": 1}`); !strings.Contains(got, "used up") {
		t.Errorf("the same step again: %s", got)
	}
}

func TestARefusalOfTheDatabaseDoesNotUseUpTheStep(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "new", "DRAINER_STEP": "pay"})
	for _, broken := range [][2]string{
		{`ALTER TABLE outbox.tool RENAME TO away`, `ALTER TABLE outbox.away RENAME TO tool`},
		{`ALTER TABLE outbox.intent RENAME TO away`, `ALTER TABLE outbox.away RENAME TO intent`},
		{
			`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE insufficient_privilege; END';
		  CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox.intent DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
			`DROP TRIGGER refuse ON outbox.intent`,
		},
	} {
		drainertest.Exec(t, a.db, broken[0])
		if got, isError := a.ask("enqueue_bank_pay", `{"amount": 1}`); !isError || !strings.HasPrefix(got, "nothing was recorded") || strings.Contains(got, "away") {
			t.Errorf("after %s: %s", broken[0], got)
		}
		drainertest.Exec(t, a.db, broken[1])
	}
	if got, _ := a.ask("enqueue_bank_pay", `{"amount": 1}`); got != vectors(t)["recorded"] {
		t.Errorf("the same step later: %s", got)
	}
}

func TestADatabaseThatWasNeverReachedDoesNotUseUpTheStep(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "new", "DRAINER_STEP": "pay"})
	admit := func(all bool) {
		drainertest.Exec(t, a.db, `UPDATE pg_database SET datallowconn = $1 WHERE datname = current_database()`, all)
	}
	admit(false)
	if got, isError := a.ask("enqueue_bank_pay", `{"amount": 1}`); !isError || !strings.Contains(got, "nothing was recorded") || strings.Contains(got, "may have been") {
		t.Errorf("no connection: %s", got)
	}
	admit(true)
	if got, _ := a.ask("enqueue_bank_pay", `{"amount": 1}`); got != vectors(t)["recorded"] {
		t.Errorf("the same step later: %s", got)
	}
}

func TestACallWithoutAStepRecordsNothing(t *testing.T) {
	t.Parallel()
	a := taking(t, map[string]string{"DRAINER_RUN": "new"})
	if got, isError := a.ask("enqueue_bank_pay", `{"amount": 1}`); !isError || !strings.Contains(got, "DRAINER_STEP") {
		t.Errorf("no step: %s", got)
	}
	if got := drainertest.Value[int](t, a.db, `SELECT count(*) FROM outbox.intent`); got != 3 {
		t.Errorf("%d intents, want the 3 from before", got)
	}
}

func TestARequestThatCannotBeRecordedIsCalledMalformed(t *testing.T) {
	t.Parallel()
	run := strings.Repeat("r", 300)
	a := newAssistant(t, mcpserver.Options{
		Offers: []mcpserver.Offer{{Tool: "bank/pay"}, {Tool: "bank/late"}},
		StepOf: func(http.Header) (dispatch.Tuple, func(), error) {
			return dispatch.Tuple{AgentRunID: run, StepID: "s", BusinessScope: "b"}, func() {}, nil
		},
	})
	if got, isError := a.ask("enqueue_bank_late", `{}`); !isError || !strings.Contains(got, "nothing was recorded") {
		t.Errorf("a run that is too long: %s", got)
	}
	run = "new"
	for _, arguments := range []string{`[1]`, `"text"`, `null`, `{"memo": "\u0000"}`} {
		got, isError := a.ask("enqueue_bank_pay", arguments)
		if !isError || !strings.Contains(got, "not recorded") && !strings.Contains(got, "nothing was recorded") {
			t.Errorf("%s: %s", arguments, got)
		}
	}
	if got := drainertest.Value[int](t, a.db, `SELECT count(*) FROM outbox.intent`); got != 3 {
		t.Errorf("%d intents, want the 3 from before", got)
	}
}

func TestAModelIsToldWhatBecameOfItsRequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ step, before, arguments, sentence string }{
		"done already":      {"s1", ``, `{"memo": "canary-payload"}`, "completed"},
		"in doubt":          {"s2", ``, `{"memo": "canary-payload"}`, "unknown"},
		"waits":             {"s3", ``, `{"memo": "canary-payload"}`, "pending"},
		"other values":      {"s1", ``, `{"amount": 2}`, "key_taken"},
		"the run is closed": {"s9", `SELECT outbox.operate_run('r', 'cancel_run', 'operator:ann', 'stop')`, `{}`, "run_closed"},
		"another tenant's":  {"s9", `INSERT INTO outbox.tenant (name, role) VALUES ('own', session_user)`, `{}`, "other_tenant"},
		"at a limit":        {"s9", `UPDATE outbox.intent SET tenant = 1; UPDATE outbox.queue SET tenant = 1; INSERT INTO outbox.tenant (name, role, max_due) VALUES ('own', session_user, 1)`, `{}`, "limit_reached"},
		"no such tool":      {"s9", `INSERT INTO outbox.tool (name) VALUES ('bank/transfer')`, `{}`, "unknown_tool"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := map[string]string{"DRAINER_RUN": "r", "DRAINER_STEP": test.step, "DRAINER_SCOPE": "b"}
			a := newAssistant(t, mcpserver.Options{
				Offers: []mcpserver.Offer{{Tool: "bank/pay"}},
				StepOf: mcpserver.StepOfEnvironment(func(name string) string { return step[name] }),
			})
			if test.before != "" {
				drainertest.Exec(t, a.db, test.before)
			}
			if got, _ := a.ask("enqueue_bank_pay", test.arguments); got != vectors(t)[test.sentence] {
				t.Errorf("%q, want %q", got, vectors(t)[test.sentence])
			}
		})
	}
}

// vectors returns the sentences of the packages for producers.
func vectors(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../clients/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var shared struct {
		Sentences map[string]string `json:"sentences"`
	}
	if err := json.Unmarshal(text, &shared); err != nil {
		t.Fatal(err)
	}
	return shared.Sentences
}

func TestHeadersNameTheStepOfACallOverHTTP(t *testing.T) {
	t.Parallel()
	full := http.Header{"Drainer-Run": {"r"}, "Drainer-Step": {"s"}, "Drainer-Scope": {"b"}}
	if got, _, err := mcpserver.StepOfHeaders(full); err != nil || got != (dispatch.Tuple{AgentRunID: "r", StepID: "s", BusinessScope: "b"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, missing := range []string{"Drainer-Run", "Drainer-Step"} {
		part := full.Clone()
		part.Del(missing)
		if _, _, err := mcpserver.StepOfHeaders(part); err == nil {
			t.Errorf("a call without %s has a step", missing)
		}
	}
	if _, _, err := mcpserver.StepOfHeaders(nil); err == nil {
		t.Error("a call without headers has a step")
	}
}
