package faults_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/integration/fault"
	"github.com/agentoutbox/drainer/integration/harness"
	"github.com/agentoutbox/drainer/integration/pgproxy"
	"github.com/agentoutbox/drainer/integration/program"
)

// Every secret contains canary. Names that agents choose contain agentName, which only operators may see.
const (
	canary    = "canary"
	agentName = "name-by-agent"
)

// TestNoSecretIsInAnyOutput puts canaries in all places for secrets, and causes all errors that could show a secret.
func TestNoSecretIsInAnyOutput(t *testing.T) {
	t.Parallel()
	rig := harness.New(t, nil)
	witness := newWitness(rig.Provider)
	address := dispatchtest.Serve(t, witness)
	rig.Reconfigure(func(config string) string { return withSecrets(config, rig.BaseURL, address) })
	rig.Program = program.New(t, loginURL(t, rig), "USER=ann", "TOKEN=canary-token", "CREDENTIALS=canary:canary",
		"PAGER_PATH=canary-pager", "PAGER_SECRET=whsec_"+strings.Repeat("canaryXX", 4),
		"OTEL_EXPORTER_OTLP_ENDPOINT="+as(t, address, "outbox")+"/collector", "OTEL_EXPORTER_OTLP_HEADERS=x-token=canary-collector", "OTEL_BSP_SCHEDULE_DELAY=50")
	daemon := rig.Start()
	witness.refuses.Store(true) // a refusal of the credentials counts only before the first success
	enqueueWithSecrets(rig, len(talks)+1, harness.Once)
	rig.AwaitCount("the 401 stops the provider", 1, `SELECT count(*) FROM outbox.incident WHERE kind = 'credentials_refused'`)
	witness.refuses.Store(false)
	if output, err := rig.Program.Command("providers", "resume", "once", "--reason", "the test goes on", "--config", rig.Config).CombinedOutput(); err != nil {
		t.Fatalf("resume: %v\n%s", err, output)
	}
	for run := range talks {
		enqueueWithSecrets(rig, run, harness.Once)
	}
	enqueueWithSecrets(rig, len(talks), harness.Order)
	rig.AwaitRest()
	enqueueWithSecrets(rig, len(talks), harness.Declined)
	rig.AwaitCount("a run is rolled back", 1, `SELECT count(*) FROM outbox.status WHERE status = 'compensated'`)
	daemon.WaitFor("a page was not delivered")
	witness.pagerUp.Store(true)
	daemon.WaitFor(`"msg":"paged"`)
	drainertest.Eventually(t, "spans are exported", func() bool { return witness.body("collector") != "" })

	hidden := map[string]string{
		"metrics":   daemon.Get("/metrics"),
		"readiness": daemon.Get("/readyz"),
		"log":       daemon.Terminate(), // this exports the last spans
		"pages":     witness.body("pager"),
		"spans":     witness.body("collector"),
	}
	fault.Injected(t, 63, witness.spoke+witness.saw(t, "canary-token", "canary-payload", "canary-query", "canary-agent", "canary-pager", "canary-collector"))
	for place, text := range hidden {
		assertLacks(t, place, text, canary, agentName)
	}
	for command, text := range commands(rig) {
		assertLacks(t, command, text, canary)
	}
	assertLacks(t, "incidents and jobs", kept(t, rig), canary)
}

// kept returns all texts in the database that operators can read.
func kept(t *testing.T, rig *harness.Rig) string {
	t.Helper()
	const rows = `SELECT coalesce((SELECT string_agg(i::text, ' ') FROM outbox.incident i), '') || coalesce((SELECT string_agg(row_to_json(j)::text, ' ') FROM outbox.river_job j WHERE kind LIKE 'page%'), '')`
	return drainertest.Value[string](t, rig.DB, rows)
}

func assertLacks(t *testing.T, place, text string, words ...string) {
	t.Helper()
	if text == "" {
		t.Errorf("the %s say nothing, and so they show nothing", place)
	}
	for _, word := range words {
		if before, after, found := strings.Cut(text, word); found {
			t.Errorf("the %s show a secret: …%s%s%.100s", place, before[max(0, len(before)-200):], word, after)
		}
	}
}

// A provider that repeats the request would show the daemon's credentials to agents.
func TestACredentialThatAProviderRepeatsIsNotKept(t *testing.T) {
	t.Parallel()
	credential := "sk/live+" + strings.Repeat("canary-of-the-echo+", 20) // longer than the stored part of a reference
	var echoes atomic.Int64
	provider := dispatchtest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := r.Header.Get("Authorization")
		w.Header().Set("X-Request-Id", sent)
		if echoes.Add(1) == 1 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusTooManyRequests)
			_ = json.NewEncoder(w).Encode(map[string]any{"type": sent, "title": strings.Repeat("x", 100) + sent, "detail": strings.Repeat("x", 1000) + sent})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": sent, "headers": r.Header,
			"basic": base64.StdEncoding.EncodeToString([]byte("user:" + strings.TrimPrefix(sent, "Bearer "))),
			"url":   strings.ReplaceAll(url.QueryEscape(sent), "%2F", "/"), // as Python encodes it
		})
	}))
	rig := harness.New(t, nil)
	rig.Reconfigure(func(config string) string {
		return strings.Replace(config, "http: {base_url: "+rig.BaseURL+"}",
			"http: {base_url: "+provider+", headers: {Authorization: \"Bearer ${env:ECHOED}\"}}", 1)
	})
	daemon := rig.Start("ECHOED=" + credential)
	rig.Enqueue(harness.Keyed, 3)
	rig.AwaitRest()
	fault.Injected(t, 69, int(echoes.Load()))
	encoded := base64.RawStdEncoding.EncodeToString([]byte("user:" + credential))
	if kept := rig.Count(`SELECT count(*) FROM outbox.attempt a WHERE a::text LIKE '%canary%' OR a::text LIKE '%' || $1 || '%'`, encoded[8:len(encoded)-2]); kept != 0 {
		t.Errorf("%d attempts keep the credential", kept)
	}
	assertLacks(t, "log", daemon.Terminate(), "canary", encoded[8:len(encoded)-2])
	if told := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE problem->>'title' LIKE '%[secret]'`); told != 1 {
		t.Errorf("%d refusals show where it was, want 1", told)
	}
	if answered := rig.Count(`SELECT count(*) FROM outbox.attempt WHERE outcome = 'completed' AND response::text LIKE '%[secret]%' AND provider_ref LIKE '%[secret]%'`); answered != 3 {
		t.Errorf("%d answers show where it was, want 3", answered)
	}
}

// mistakes has a mistake with a secret for each of these fields of a configuration.
var mistakes = map[string]string{
	`base_url: "http://`:        `base_url: "http://${env:CREDENTIALS}@`,
	`base_url: "`:               `base_url: "${env:TOKEN}`,
	`timeout: 1s`:               `timeout: "${env:TOKEN}"`,
	`"${env:PAGER_SECRET}"`:     `"${env:CREDENTIALS}"`,
	`class: key_idempotent`:     `class: "${env:TOKEN}"`,
	`payload: "{order: `:        `payload: "{order: ${env:CREDENTIALS} `,
	`"/v1/once/{.payload.card}`: `"/v1/once/{${env:CREDENTIALS}}`,
}

// commands runs commands with right and wrong arguments, and returns all their output.
func commands(rig *harness.Rig) map[string]string {
	said := map[string]string{}
	say := func(p program.Program, lines ...string) {
		for _, line := range lines {
			output, _ := p.Command(strings.Fields(line + " --config " + rig.Config)...).CombinedOutput()
			said[line] += string(output)
		}
	}
	say(*rig.Program, "status", "intents list", "intents show 4711", "intents retry 1 --reason again", "incidents list", "sagas list",
		"sagas show "+agentName+"-run-12", "providers list", "migrate status", "config validate", "doctor", "run --once")
	for _, wrong := range []string{"postgres://postgres:canary@127.0.0.1:1/postgres?sslmode=disable", "postgres://postgres:canary%zz@127.0.0.1:port/postgres"} {
		away := *rig.Program
		away.Env = append(slices.Clone(away.Env), "DATABASE_URL="+wrong)
		say(away, "status", "doctor", "run", "migrate up")
	}
	right := rig.Config
	for field, mistake := range mistakes {
		rig.Reconfigure(func(config string) string { return strings.Replace(config, field, mistake, 1) })
		say(*rig.Program, "config validate", "run")
		rig.Config = right
	}
	return said
}

// withSecrets configures secrets everywhere, and leads all traffic to the witness.
func withSecrets(config, provider, witness string) string {
	settings := fmt.Sprintf(`http: {headers: {Authorization: "Bearer ${env:TOKEN}"}, base_url: "%s/provider"`, witness)
	config = strings.ReplaceAll(config, "http: {base_url: "+provider, settings)
	config = strings.Replace(config, "path: /v1/once", `path: "/v1/once/{.payload.card}", query: {q: "{.payload.query}"}`, 1)
	config = strings.ReplaceAll(config, "    adapter: http\n", "    adapter: http\n    circuit_breaker: {minimum_intents: 1000, consecutive_failures: 10000}\n")
	before, once, _ := strings.Cut(config, "\n  once:\n")
	config = before + "\n  once:\n" + strings.Replace(once, "/provider", "/talker", 1)
	return config + fmt.Sprintf("pages:\n  - {webhook: {url: \"%s/pager/${env:PAGER_PATH}\", secret: \"${env:PAGER_SECRET}\"}}\n", witness)
}

// loginURL returns the database's URL with a password.
func loginURL(t *testing.T, rig *harness.Rig) string {
	t.Helper()
	name := "planted_" + strings.ToLower(rand.Text())
	rig.Exec("CREATE ROLE " + name + " LOGIN PASSWORD 'canary-password' IN ROLE outbox_drainer, outbox_operator") // it runs every command
	t.Cleanup(func() { rig.Exec("DROP ROLE " + name) })
	return as(t, rig.URL, name)
}

func as(t *testing.T, address, user string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(user, "canary-password")
	return parsed.String()
}

// enqueueWithSecrets commits a step with secrets in its payload and baggage.
func enqueueWithSecrets(rig *harness.Rig, run int, tool string) {
	rig.Exec(`SELECT outbox.enqueue($1, $2, $3, $4, '{"card": "canary-payload", "query": "canary-query"}', NULL, '{"baggage": "agent=canary-agent"}')`,
		fmt.Sprintf("%s-run-%d", agentName, run), agentName+"-"+tool, tool, agentName+"-scope")
}

// witness serves as every counterpart of the daemons, each at its own path, and remembers the requests.
type witness struct {
	provider http.Handler // at /provider
	pagerUp  atomic.Bool
	refuses  atomic.Bool // the credentials, instead of any other answer

	mu       sync.Mutex
	requests map[string]string // what each counterpart received, without the bodies
	bodies   map[string]string
	spoke    int
}

func newWitness(provider http.Handler) *witness {
	return &witness{provider: provider, requests: map[string]string{}, bodies: map[string]string{}}
}

func (w *witness) ServeHTTP(writer http.ResponseWriter, r *http.Request) {
	whom, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, _ := io.ReadAll(r.Body)
	w.note(whom, fmt.Sprintln(r.URL, r.Header), string(body))
	switch whom {
	case "talker":
		w.talk(writer)
	case "pager":
		if !w.pagerUp.Load() {
			writer.WriteHeader(http.StatusServiceUnavailable)
		}
	case "provider":
		r.URL.Path, r.Body = "/"+path, io.NopCloser(bytes.NewReader(body))
		w.provider.ServeHTTP(writer, r)
	}
}

func (w *witness) note(whom, request, body string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests[whom] += request
	w.bodies[whom] += body
}

func (w *witness) body(whom string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bodies[whom]
}

// saw returns how many of the secrets reached a counterpart. It fails the test unless all did.
func (w *witness) saw(t *testing.T, secrets ...string) (seen int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	everything := fmt.Sprint(w.requests, w.bodies)
	for _, secret := range secrets {
		if !strings.Contains(everything, secret) {
			t.Errorf("no counterpart was sent %s, so nothing is shown of it", secret)
			continue
		}
		seen++
	}
	return seen
}

// talks are replies with secrets that a client may repeat in its errors. The first answers the probe after a
// refusal, so that the other requests are sent.
var talks = []string{
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"id\": \"eff_1\"}canary, unasked for\r\n",
	"canary is no HTTP\r\n\r\n",
	"HTTP/1.1 2canary OK\r\n\r\n",
	"HTTP/1.1 200 OK\r\ncanary is no header\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: canary\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: canary\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary\r\n",
	"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\ncanary",
	"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"canary",
	"HTTP/1.1 200 OK\r\nContent-Type: canary\r\nContent-Length: 2\r\n\r\n{}",
	"HTTP/1.1 307 Elsewhere\r\nLocation: http://canary:canary@127.0.0.1/canary\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 500 canary\r\nRetry-After: canary\r\nDate: canary\r\nContent-Length: 6\r\n\r\ncanary",
}

const refusal = "HTTP/1.1 401 canary\r\nContent-Type: application/problem+json\r\nContent-Length: 44\r\n\r\n{\"title\": \"canary is no token\", \"detail\": 1 }"

// talk writes the next of the talks.
func (w *witness) talk(writer http.ResponseWriter) {
	conn, _, err := writer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	w.mu.Lock()
	said := refusal
	if !w.refuses.Load() {
		said = talks[w.spoke%len(talks)]
		w.spoke++
	}
	w.mu.Unlock()
	_, _ = io.WriteString(conn, said)
}

// An agent may create objects in public, which is in the search_path of the daemon's login and of the operator's. The
// agent shadows functions and operators there, and each shadow that runs records its login.
func TestWhatAnAgentCreatesInPublicRunsAsNoDaemonAndNoOperator(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind a pooler is %t", pooled), func(t *testing.T) {
			t.Parallel()
			rig := harness.New(t, nil)
			pager := newPager(t, rig)
			pager.up.Store(true)
			// The test's own connections need a database that works, so they do not have public in their search_path.
			rig.Exec(fmt.Sprintf("ALTER DATABASE %s SET search_path = pg_catalog, pg_temp", drainertest.Value[string](t, rig.DB, "SELECT current_database()")))
			rig.DB.Reset()
			daemon, operator, agent := loginOf(t, rig, "outbox_drainer"), loginOf(t, rig, "outbox_operator"), loginOf(t, rig, "outbox_agent")
			rig.Exec("GRANT CREATE, USAGE ON SCHEMA public TO " + agent.User.Username())
			shadow(t, agent)
			if ran := attack(t, rig, daemon); ran != 2 {
				t.Fatal("the attack does not work, so this test shows nothing")
			}
			fault.Injected(t, 65, rig.Count(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace`))

			for _, login := range []*url.URL{daemon, operator} {
				if pooled { // a pooler accepts no search_path at login
					refused := new(atomic.Int64)
					through, err := url.Parse(pgproxy.RefuseSettings(t, login.String(), refused))
					if err != nil {
						t.Fatal(err)
					}
					*login = *through
					t.Cleanup(func() {
						if refused.Load() == 0 {
							t.Error("no setting was refused, so nothing was behind a pooler")
						}
					})
				}
			}
			rig.Start("DATABASE_URL=" + daemon.String())
			stop := rig.Agents(everyClass...)
			for range 3 {
				run := rig.NewRun()
				rig.Step(run, 1, harness.Order)
				rig.Step(run, 2, harness.Declined)
			}
			rig.AwaitMoreEffects(50)
			stop()
			rig.AwaitCount("runs are taken back", 3, `SELECT count(*) FROM outbox.saga WHERE state = 'compensated'`)
			rig.AwaitCount("River works, or would if its own SQL ran", 1,
				`SELECT count(*) FROM (SELECT FROM outbox.river_job WHERE kind = 'page_look' AND state = 'completed' UNION ALL SELECT FROM public.taken) s`)
			rig.AwaitRest()
			console := rig.Program.For(t)
			console.Env = append(console.Env, "DATABASE_URL="+operator.String())
			for _, command := range []string{
				"status", "intents list", "intents list --dead", "intents show 1", "sagas list", "incidents list", "providers list",
				"providers pause keyed --reason test --operator ada", "providers resume keyed --reason test --operator ada",
			} {
				console.Run(0, strings.Fields(command)...)
			}
			rig.Check()
			for _, taken := range drainertest.Column[string](t, rig.DB, `SELECT login || ' calls ' || what FROM public.taken GROUP BY login, what ORDER BY 1`) {
				t.Errorf("the agent's code ran: %s", taken)
			}
		})
	}
}

// loginOf returns the URL of a login with that role, whose search_path has public.
func loginOf(t *testing.T, rig *harness.Rig, role string) *url.URL {
	t.Helper()
	name := strings.ToLower(role[len("outbox_"):] + "_" + rand.Text())
	rig.Exec(fmt.Sprintf(`CREATE ROLE %[1]s LOGIN PASSWORD 'login' IN ROLE %[2]s; ALTER ROLE %[1]s SET search_path = "$user", public`, name, role))
	t.Cleanup(func() { rig.Exec(fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", name)) })
	address, err := url.Parse(rig.URL)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(name, "login")
	return address
}

func shadow(t *testing.T, agent *url.URL) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), agent.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{
		`CREATE TABLE public.taken (login text, what text); GRANT INSERT ON public.taken TO PUBLIC`,
		`CREATE FUNCTION public.attack() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
			DECLARE stack text;
			BEGIN
			  GET DIAGNOSTICS stack = PG_CONTEXT;
			  INSERT INTO public.taken VALUES (session_user, stack || ' in ' || current_query());
			  RETURN true;
			END $$`,
		drainertest.ShadowRoutines,
		`CREATE FUNCTION public.shadow(outbox.river_job_state, outbox.river_job_state) RETURNS boolean LANGUAGE plpgsql
			SET search_path = pg_catalog, pg_temp AS 'BEGIN PERFORM public.attack(); RETURN NULL; END'`,
		`CREATE OPERATOR public.= (FUNCTION = public.shadow, LEFTARG = outbox.river_job_state, RIGHTARG = outbox.river_job_state)`,
	} {
		drainertest.Exec(t, conn, sql)
	}
}

// attack shows that a careless statement of that login would run the agent's function, and resets the record of
// it.
func attack(t *testing.T, rig *harness.Rig, login *url.URL) (ran int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), login.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	drainertest.Exec(t, conn, `SELECT 1::bigint - 0.5::float8, 'available'::outbox.river_job_state = 'available'`)
	ran = rig.Count(`SELECT count(*) FROM public.taken`)
	rig.Exec(`DELETE FROM public.taken`)
	return ran
}
